"""Timing the best sets of a search again, in turns.

The best of many noisy timings is too good, and often not the best set. The set with the best median
of new timings is taken.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, read_lines
from skipbench.runs.reading import printable, strict_json
from skipbench.search.run import Objective, Trial
from skipbench.skipset import SkipSet

BEST, TIMES = 5, 3
FILE = "retimed.jsonl"
"""Beside the trace; one line per number of iterations at which a search has ended."""


@dataclass(frozen=True)
class Retimed:
    """The best sets of the first `iterations` trials, the best of the search first."""

    iterations: int
    best: str
    value: float
    """Median of the new values of `best`."""
    sets: list[str]
    values: list[list[float]]
    """New values of each set, in the order of the turns."""

    @property
    def rank(self) -> int:
        """Place of `best` in the search, 1 where the search had found it."""
        return self.sets.index(self.best) + 1


def candidates(trials: Sequence[Trial]) -> list[str]:
    """The best distinct sets of a search, the best first, by the best value of each."""
    found = sorted((t for t in trials if t.value is not None), key=lambda t: t.value or 0.0)
    return list(dict.fromkeys(t.skip for t in found))[:BEST]


def retime(
    objective: Objective,
    sets: Sequence[str],
    layers: int,
    iterations: int,
    advance: Callable[[], None],
) -> Retimed:
    """Times every set `TIMES` times: all of them in turns, each turn from another set on."""
    values: list[list[float]] = [[] for _ in sets]
    for turn in range(TIMES):
        for place in range(len(sets)):
            number = (place + turn) % len(sets)
            values[number].append(objective(SkipSet.parse(sets[number], layers))[0])
            advance()
    medians = [statistics.median(own) for own in values]
    best = medians.index(min(medians))
    return Retimed(iterations, sets[best], medians[best], list(sets), values)


def write_retimed(folder: Path, found: Retimed) -> None:
    append_line(folder / FILE, json.dumps(asdict(found), allow_nan=False))


def read_retimed(folder: Path, iterations: int) -> Retimed | None:
    """The timings after so many trials; `None` without any.

    Raises:
        SkipbenchError: the file cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        found = [msgspec.convert(strict_json(line), Retimed) for _, line in read_lines(path)]
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"{path} cannot be read ({printable(str(error))}); move it away"
        ) from error
    return next((one for one in found if one.iterations == iterations), None)
