"""The texts of a run, for scores that are made after it: one line of `completions.jsonl` a sample,
in the order of the samples.
"""

import dataclasses
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import MOST_SAMPLES, printable, read_bytes, strict_json
from skipbench.runs.record import Count


@dataclass(frozen=True)
class Completion:
    """What vanilla and the method wrote behind one prompt, and what their texts are compared
    with.
    """

    index: Count
    id: str
    prompt: str
    reference: dict[str, Any]
    vanilla: str
    method: str


_DECODER = msgspec.json.Decoder(Completion)
_FIELDS = {f.name for f in dataclasses.fields(Completion)}


def dump_completion(completion: Completion) -> str:
    """One line of JSON, without a line break."""
    return json.dumps(dataclasses.asdict(completion), separators=(",", ":"), allow_nan=False)


def parse_completion(line: str | bytes) -> Completion:
    """Reads one line. Raises SkipbenchError for anything else than a completion."""
    try:
        data = line.encode() if isinstance(line, str) else line
        raw = strict_json(data)
        if not isinstance(raw, dict) or raw.keys() - _FIELDS:
            raise ValueError("other fields")
        return _DECODER.decode(data)
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"not a completion: {line[:80]!r} ({printable(str(error))})"
        ) from error


def _lines(path: Path) -> list[bytes]:
    """Whole lines: what stands behind the last line break was being written when the process
    died.
    """
    return (read_bytes(path, MOST_SAMPLES) or b"").split(b"\n")[:-1]


def read_completions(path: Path) -> list[Completion]:
    """The completions in the order written; empty if there is no file.

    Raises:
        SkipbenchError: a line that cannot be read, or an index that occurs twice.
    """
    found: dict[int, Completion] = {}
    for number, line in enumerate(_lines(path), 1):
        try:
            completion = parse_completion(line)
        except SkipbenchError as error:
            raise SkipbenchError(f"{path}, line {number}: {error}") from error
        if completion.index in found:
            raise SkipbenchError(f"{path}, line {number}: sample {completion.index} occurs twice")
        found[completion.index] = completion
    return list(found.values())


def cut_unfinished(path: Path, finished: Collection[int]) -> None:
    """Cuts off the end of the file what belongs to no sample in `finished`: a torn line, or one
    whose sample is missing.
    """
    if not path.exists():
        return
    lines = _lines(path)
    while lines and not _is_of(lines[-1], finished):
        lines.pop()
    end = sum(len(line) + 1 for line in lines)
    if end < path.stat().st_size:
        os.truncate(path, end)


def _is_of(line: bytes, finished: Collection[int]) -> bool:
    try:
        return parse_completion(line).index in finished
    except SkipbenchError:
        return False
