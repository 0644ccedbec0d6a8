"""What of settings, words and files names no place of the machine that they are from."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path, PureWindowsPath
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import read_bytes

OF_PLACES = "results="  # a word of a command
SEARCHED = "hydra.searchpath="  # the front door's own: folders of `--config-dir`, among ours
QUOTES = "'\""  # around a value of a command line
TEXTS = {".json", ".jsonl", ".yaml", ".md", ".csv", ".tex", ".html", ".svg", ".txt"}
PLACE = re.compile(
    r"[/~\\]|\.\.[/\\]|[a-z]:[/\\]|(file|ftp|nfs|scp|sftp|smb|ssh):|\$[{\w]|%\w+%"
    r"|[\w.-]+@[\w.-]+:[/~]",
    re.IGNORECASE,
)
"""How a path begins: of Unix, of Windows, of a share or another machine, of a variable's folder."""
HOME = re.compile(r"([/\\](home|Users)[/\\][^/\\]+|^~[^/\\]*)[/\\]?$")
"""A folder whose own name is a person's."""
LEFT = rb"""
    [/\\](home|Users|Documents\ and\ Settings)[/\\]+[^\s"'/\\]+
    |(?<=[\s"'=])(
        file:/+[\w.~%-]+/
        |~\w*/\w
        |\\\\(\\\\)?[\w.$-]{2,}\\+\w  # a share; JSON has each twice
        |[A-Za-z]:(\\\\|/)\w
        |[\w.-]+@[\w.-]+:[/~]
    )
    |^[\s\w.-]*[:-]\ [A-Za-z]:\\\w  # in YAML
"""
"""Such a path in a file's text."""


def public(value: Any) -> Any:
    """Settings in which of a path of a machine only the last part is left."""
    match value:
        case dict():
            return {k: public(v) for k, v in value.items()}
        case list():
            return [public(v) for v in value]
        case str() if PLACE.match(text := value.strip(QUOTES)):
            return f"elsewhere:{'' if HOME.search(text) else PureWindowsPath(text).name}"
    return value


def public_words(words: Sequence[str]) -> Iterator[str]:
    """Words of a command line: KEY=VALUE, with one value or a list, or a value alone."""
    for word in words:
        if word.startswith(SEARCHED):
            folders = re.findall(r"file:/*([^'\",\]]+)", word)
            own = (folder for folder in folders if not re.search(r"/contrib/\w+/conf$", folder))
            yield from chain(*(("--config-dir", PureWindowsPath(one).name) for one in own))
        elif not word.startswith(OF_PLACES):
            key = re.match(r"([\w.@+-]+(/[\w.@]+)*=)?", word)
            start = word[: key.end()] if key else ""
            parts = re.split(r"([\[\],]+)", word.removeprefix(start))
            yield start + "".join(str(public(part)) for part in parts)


def refuse_places(out: Path, results: Path) -> None:
    """Raises SkipbenchError for a file of `out` in which, or in whose name, a place is left."""
    places = {str(Path.home()), str(Path.cwd()), str(results.resolve()), str(out.resolve())}
    literal = "|".join(re.escape(place) + r"\b" for place in places - {"/"}).encode()
    pattern, left = re.compile(literal), re.compile(LEFT, re.VERBOSE | re.MULTILINE)
    for path in sorted(out.rglob("*")):
        name = f" {path.relative_to(out)}\n".encode()
        text = name + (read_bytes(path) or b"" if path.suffix in TEXTS else b"")
        if match := pattern.search(text) or left.search(text):
            raise SkipbenchError(
                f"{path} names a place of a machine, {match[0].decode(errors='replace')!r}; "
                f"remove it from the results folder's file, and {out}, then bundle again"
            )
