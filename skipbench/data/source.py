"""Reading the rows of a dataset: from a local file, the hub, or one file of a repository.

The hub library and `fetch` cache what they fetched; HF_HUB_OFFLINE=1 forbids the network.
"""

import contextlib
import hashlib
import os
import re
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skipbench.config.paths import cache_folder, hub_offline, hub_unreachable
from skipbench.data.rows import read_file
from skipbench.errors import SkipbenchError

_SHA1 = re.compile(r"[0-9a-f]{40}")
_ADVICE = (
    "Fetch it where there is a network with `python -m skipbench data {name}`, which fills the "
    "cache that later runs use, or give a local file with the columns {columns}: dataset.path=FILE"
)


def read_rows(
    hub: str,
    config: str | None,
    split: str,
    revision: str,
    path: str | Path | None,
    columns: Mapping[str, type],
    may_be_empty: Sequence[str] = (),
    name: str = "NAME",
) -> Sequence[dict[str, Any]]:
    """The rows of a dataset in their order, each with at least `columns`.

    Args:
        hub: id on the hub, or the https address of one .jsonl or .parquet file.
        config: name of a configuration on the hub; several joined by `+` are read one after
            another.
        revision: commit, branch or tag on the hub; for an address the SHA-256 (hex) of the file.
        path: a local file in the hub's columns, read instead.
        columns: type of each column that is needed.
        may_be_empty: columns whose text may be empty.
        name: of the dataset, for messages.

    Raises:
        SkipbenchError: a file that `read_file` refuses; no network and not cached; an unknown
            dataset, configuration, split or revision; a cached copy of another revision; columns
            that are not there.
    """
    if path is not None:
        return read_file(Path(path), columns, may_be_empty)
    advice = _ADVICE.format(name=name, columns=", ".join(columns))
    if hub.startswith("https://"):
        return read_file(fetch(hub, revision, advice), columns, may_be_empty)
    names = (config or "").split("+")
    parts = [_from_hub(hub, one, split, revision, columns, advice) for one in names]
    # One part is not copied: a train split has hundreds of thousands of rows, a few are drawn.
    return parts[0] if len(parts) == 1 else [row for part in parts for row in part]


def _from_hub(
    hub: str, config: str, split: str, revision: str, columns: Mapping[str, type], advice: str
) -> Sequence[dict[str, Any]]:
    import datasets  # slow to import, and not needed for local files

    place = f"dataset {hub}{f' ({config})' if config else ''}, split {split}, revision {revision}"
    try:
        with _without_retries():
            found = datasets.load_dataset(hub, config or None, split=split, revision=revision)
    except Exception as error:  # the library lets errors of network, files and parsers through
        raise SkipbenchError(f"{place}: {_reason(error)} ({error}). {advice}") from error
    missing = [column for column in columns if column not in found.column_names]
    if missing:
        raise SkipbenchError(
            f"{place} lacks the columns {', '.join(missing)}; it has "
            f"{', '.join(found.column_names)}. Pin a revision that has them "
            "(dataset.revision=...), or say which columns to take (dataset.columns)"
        )
    # Offline the library takes the newest copy in its cache, whichever revision was asked for.
    origins = list(getattr(found.info, "download_checksums", None) or {})
    same = any(f"@{revision}/" in origin for origin in origins)
    if origins and _SHA1.fullmatch(revision) and not same:
        raise SkipbenchError(f"{place}: the cache holds another revision ({origins[0]}). {advice}")
    rows: Sequence[dict[str, Any]] = found.select_columns(list(columns))
    return rows


@contextlib.contextmanager
def _without_retries() -> Iterator[None]:
    """Sets the libraries offline where the hub cannot be reached: they would retry for half a
    minute.
    """
    import datasets
    from huggingface_hub import constants

    modules: tuple[Any, ...] = (constants, datasets.config) if hub_unreachable() else ()
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def _reason(error: Exception) -> str:
    import datasets

    text = str(error)
    if isinstance(error, datasets.exceptions.DatasetNotFoundError):
        if text.startswith("Revision"):
            return (
                "there is no such revision; set dataset.revision to a commit of its page on the hub"
            )
        if "gated" in text:
            return "access must be asked for on its page, then log in with `hf auth login`"
        return "the hub has no such dataset, or you may not read it"
    if isinstance(error, ConnectionError) or "Couldn't find cache" in text:
        why = "HF_HUB_OFFLINE is set" if hub_offline() else "the hub cannot be reached"
        return f"it is not in the cache, and {why}"
    if isinstance(error, ValueError):
        return "it has no such configuration or split, or cannot be read"
    return "it could not be loaded"


def fetch(url: str, sha256: str, advice: str = "") -> Path:
    """The file at an address, from the cache (`~/.cache/skipbench`, or below XDG_CACHE_HOME) or the
    network.

    Raises:
        SkipbenchError: it cannot be fetched, HF_HUB_OFFLINE forbids it, or its SHA-256 (hex) is
            another.
    """
    cached = cache_folder() / f"{sha256[:16]}-{url.rpartition('/')[2]}"
    if known := cached.is_file():
        data = cached.read_bytes()
    elif hub_offline():
        raise SkipbenchError(
            f"{url} is not in the cache, and HF_HUB_OFFLINE is set. {advice}".rstrip()
        )
    else:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                data = answer.read()
        except OSError as error:
            raise SkipbenchError(f"{url} cannot be fetched ({error}). {advice}".rstrip()) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        cached.unlink(missing_ok=True)
        raise SkipbenchError(
            f"{url} has changed: its SHA-256 is {digest}, wanted {sha256}. Try again, or set "
            "dataset.revision to the new one if you trust it"
        )
    try:
        if not known:
            cached.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=cached.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, cached)  # a reader in another process sees the whole file or none
    except OSError as error:
        raise SkipbenchError(
            f"cannot write {cached} ({error}); set XDG_CACHE_HOME to a folder with space"
        ) from error
    return cached
