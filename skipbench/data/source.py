"""Rows of the hub and files of other addresses, both cached; HF_HUB_OFFLINE=1 keeps offline."""

import contextlib
import hashlib
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from skipbench.config.paths import cache_folder, hub_offline, hub_unreachable
from skipbench.errors import SkipbenchError
from skipbench.runs.files import write_atomic

_SHA1 = re.compile(r"[0-9a-f]{40}")


def from_hub(
    hub: str, config: str | None, split: str, revision: str, columns: Sequence[str], advice: str
) -> Sequence[dict[str, Any]]:
    """The rows of a dataset of the hub in their order, with `columns`; configurations joined by `+`
    are read one after another, and `revision` is a commit, branch or tag. Raises SkipbenchError,
    which ends with `advice`, where something of it is unknown or cannot be had.
    """
    if config and "+" in config:
        parts = (from_hub(hub, c, split, revision, columns, advice) for c in config.split("+"))
        return [row for part in parts for row in part]
    import datasets  # slow to import, and not needed for local files

    place = f"dataset {hub}{f' ({config})' if config else ''}, split {split}, revision {revision}"
    try:
        with offline(hub_unreachable()):  # it would be asked again for half a minute
            found = datasets.load_dataset(hub, config or None, split=split, revision=revision)
    except Exception as error:  # the library lets errors of network, files and parsers through
        raise SkipbenchError(f"{place}: {error}. {advice}") from error
    missing = [column for column in columns if column not in found.column_names]
    if missing:
        raise SkipbenchError(
            f"{place} lacks the columns {', '.join(missing)}; it has "
            f"{', '.join(found.column_names)}. Change dataset.revision or dataset.columns"
        )
    # Offline the library takes the newest copy in its cache, whichever revision was asked for.
    origins = list(getattr(found.info, "download_checksums", None) or {})
    same = any(f"@{revision}/" in origin for origin in origins)
    if origins and _SHA1.fullmatch(revision) and not same:
        raise SkipbenchError(f"{place}: the cache holds another revision ({origins[0]}). {advice}")
    rows: Sequence[dict[str, Any]] = found.select_columns(list(columns))
    return rows


@contextlib.contextmanager
def offline(wanted: bool = True) -> Iterator[None]:
    """Within it nothing asks the network: what is not in a cache is an error."""
    import datasets
    from huggingface_hub import constants

    modules: tuple[Any, ...] = (constants, datasets.config) if wanted else ()
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def fetch(url: str, sha256: str, advice: str = "") -> Path:
    """The file at an address, from the cache (`~/.cache/skipbench`, or below XDG_CACHE_HOME) or the
    network. Raises SkipbenchError if it is out of reach, or its SHA-256 (hex) is another.
    """
    from huggingface_hub import constants

    cached = cache_folder() / f"{sha256[:16]}-{url.rpartition('/')[2]}"
    if known := cached.is_file():
        data = cached.read_bytes()
    elif hub_offline() or constants.HF_HUB_OFFLINE:
        raise SkipbenchError(f"{url} is not in the cache, and HF_HUB_OFFLINE is set. {advice}")
    else:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                data = answer.read()
        except OSError as error:
            raise SkipbenchError(f"{url} cannot be fetched ({error}). {advice}") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        cached.unlink(missing_ok=True)
        why = f"its SHA-256 is {digest}, wanted dataset.revision={sha256}"
        raise SkipbenchError(f"{url} has changed: {why}")
    if not known:
        write_atomic(cached, data)
    return cached
