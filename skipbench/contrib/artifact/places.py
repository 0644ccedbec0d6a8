"""What of settings, words and files names no place of the machine that they are from."""

import re
from pathlib import Path
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import read_bytes

OF_PLACES = (
    "results=",
    "hydra.searchpath=",
)  # words of a command; the last is the front door's own
QUOTES = "'\""  # around a value of a command line
TEXTS = {".json", ".jsonl", ".yaml", ".md", ".csv", ".tex", ".html", ".svg", ".txt"}


def public(value: Any) -> Any:
    """Settings in which of a path of this machine only the last part is left."""
    match value:
        case dict():
            return {k: public(v) for k, v in value.items()}
        case list():
            return [public(v) for v in value]
        case str() if value.lstrip(QUOTES).startswith(("/", "~")):
            return f"elsewhere:{Path(value.strip(QUOTES)).name}"
    return value


def public_word(word: str) -> str:
    """A word of a command line, KEY=VALUE or a value alone."""
    key, sign, value = word.partition("=")
    return f"{key}={public(value)}" if sign else str(public(word))


def refuse_places(out: Path, results: Path) -> None:
    """Raises SkipbenchError for a file of `out` in which such a place is left."""
    places = {str(Path.home()), str(Path.cwd()), str(results.resolve()), str(out.resolve())}
    literal = "|".join(re.escape(place) + r"\b" for place in places - {"/"})
    pattern = re.compile(rf"{literal}|/(?:home|Users)/[^\s\"'/]+".encode())
    for path in sorted(out.rglob("*")):
        if path.suffix in TEXTS and (match := pattern.search(read_bytes(path) or b"")):
            raise SkipbenchError(
                f"{path} names a place of this machine, {match[0].decode(errors='replace')!r}; "
                f"remove it from the results folder's file, and {out}, then bundle again"
            )
