"""The texts of a run, for scores that are made after it: one line of `completions.jsonl` a sample,
in the order of the samples.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.runs.files import read_lines
from skipbench.runs.record import Count, parse, parse_lines


@dataclass(frozen=True)
class Completion:
    """What both arms wrote behind one prompt, and what their texts are compared with."""

    index: Count
    id: str
    prompt: str
    reference: dict[str, Any]
    vanilla: str
    method: str
    token_chars: list[Count] = field(default_factory=list)
    """Characters of `method` by token; one inside a character has 0. Empty in records of earlier
    versions.
    """


def read_completions(path: Path) -> list[Completion]:
    """The completions in the order written, without a torn last line; empty if there is no file.

    Raises:
        SkipbenchError: a line that cannot be read, or an index that occurs twice.
    """
    return list(parse_lines(path, read_lines(path), Completion))


def cut_unfinished(path: Path, finished: Collection[int]) -> None:
    """Cuts off the end of the file what belongs to no sample in `finished`: a torn line, or one
    whose sample is missing.
    """
    lines = read_lines(path)
    while lines and not _is_of(lines[-1][1], finished):
        lines.pop()
    end = sum(len(line) + 1 for _, line in lines)
    if path.exists() and end < path.stat().st_size:
        os.truncate(path, end)


def _is_of(line: bytes, finished: Collection[int]) -> bool:
    try:
        return parse(line, Completion).index in finished
    except SkipbenchError:
        return False
