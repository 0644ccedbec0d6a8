"""The tokenizer of a checkpoint: its file is checked as plain data before the library reads it."""

import contextlib
import hashlib
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from skipbench.config.model import is_gguf
from skipbench.config.paths import PACKAGE, cache_folder
from skipbench.config.trust import private_folder
from skipbench.errors import SkipbenchError
from skipbench.models.checks import explained, folder_of
from skipbench.runs.fingerprint import TEXT
from skipbench.runs.reading import MOST_BYTES, read_bytes

MOST_GROWTH = 64
"""Times that the replacements of a normalizer, or of a decoder, may lengthen a text together."""
_REPEATED = re.compile(r"(?<!\\)\)(?:[*+]|\{\d*,\})")

TRIAL = Path(__file__).with_name("trial.py")
QUIET: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
NOT_NEEDED: dict[str, Any] = {
    f"_raise_exceptions_for_{what}": False
    for what in ("gated_repo", "missing_entries", "connection_errors")
}
"""Of `cached_file`: other tokenizers have other files, and what loads them says what is missing."""


class _Parts(msgspec.Struct):
    """Those of tokenizer.json that every text goes through; vocabularies are not read here."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None


def read_tokenizer(path: str, revision: str | None = None, **more: Any) -> Any:
    """The tokenizer of a folder, a hub id or a GGUF file; none of its code runs.

    Raises SkipbenchError where there is none, it cannot be read, or one text of it could take all
    memory or time.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.utils.hub import cached_file

    # `AutoTokenizer` reads every tokenizer of a qwen2 as Qwen2's own
    kind: Any = PreTrainedTokenizerFast if is_gguf(path) else AutoTokenizer
    path = folder_of(path)
    with explained(path, revision):
        file = cached_file(path, "tokenizer.json", **NOT_NEEDED, **more, revision=revision)
        # tokenizer_config.json may name another for this version of transformers
        for other in Path(file).parent.glob("tokenizer*.json") if file else ():
            _check_parts(other)
        if (folder := Path(file).parent if file else Path(path)).is_dir():
            _try_out(folder)
        return kind.from_pretrained(path, revision=revision, trust_remote_code=False, **more)


def _try_out(folder: Path) -> None:
    """Uses what foreign files of a folder make of texts in a process with limits, once for the same
    contents. Raises SkipbenchError where one takes more.
    """
    if folder.is_relative_to(PACKAGE):
        return
    files = sorted(path for pattern in TEXT for path in folder.glob(pattern) if path.is_file())
    contents = [read_bytes(path.resolve(), MOST_BYTES) or b"" for path in (TRIAL, *files)]
    known = hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in contents)).hexdigest()
    place: Path | None = None
    with contextlib.suppress(OSError):  # no cache: it is tried again each time
        place = private_folder(cache_folder() / "tokenizers") / known
    if place is not None and place.exists():
        return
    mib = sum(map(len, contents)) >> 20
    seconds, most_bytes = 3 + mib // 4, (256 + 40 * mib) << 20
    words = [sys.executable, "-P", str(TRIAL), str(folder), str(seconds), str(most_bytes)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    try:
        subprocess.run(words, env=environment, timeout=100 * seconds, check=True, **QUIET)
    except subprocess.SubprocessError as error:
        raise SkipbenchError(
            f"{folder}: to use its tokenizer and chat template once takes more than {seconds} s or "
            f"{most_bytes >> 20} MiB of memory; take these files from a source that you know"
        ) from error
    if place is not None:
        place.touch()


def _check_parts(file: Path) -> None:
    """Raises SkipbenchError for replacements that multiply a text, and for a group that a pattern
    repeats without bound: such a search can take a time that doubles with each character.
    """
    parts = msgspec.json.decode(read_bytes(file.resolve(), MOST_BYTES) or b"{}", type=_Parts)
    for part in parts.__struct_fields__:
        steps = [*_dicts(getattr(parts, part))]
        growth = math.prod(map(_growth, steps))
        if growth > MOST_GROWTH:
            raise SkipbenchError(
                f"{file}: its {part} makes a text {growth:.0f} times as long; wanted at most "
                f"{MOST_GROWTH}"
            )
        patterns = [p.get("Regex") for s in steps if isinstance(p := s.get("pattern"), dict)]
        for pattern in patterns:
            if _REPEATED.search(str(pattern)):
                raise SkipbenchError(
                    f"{file}: its {part} searches {str(pattern)[:60]!r}, which repeats a group "
                    "without bound; write it with classes of characters"
                )


def _growth(step: dict[str, Any]) -> float:
    """How many characters a step can make of one."""
    if step.get("type") != "Replace":
        return 1.0
    pattern, content = step.get("pattern"), len(str(step.get("content") or ""))
    text = pattern.get("String") if isinstance(pattern, dict) else pattern
    # at least the text itself; a regular expression may match between any two characters
    return max(1.0, content / len(text) if isinstance(text, str) and text else content + 1)


def _dicts(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a part, those inside of sequences too."""
    if isinstance(part, dict):
        yield part
        part = [*part.values()]
    for inner in part if isinstance(part, list) else ():
        yield from _dicts(inner)
