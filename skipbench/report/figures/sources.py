"""Sources of the drafts of `auto`: accepted tokens per source over time, and against the number
expected.
"""

import itertools
import statistics
from typing import TYPE_CHECKING

from skipbench.errors import SkipbenchError
from skipbench.report.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    YELLOW,
    beside,
    one_axis,
)
from skipbench.report.published import Printed
from skipbench.runs.record import SOURCES, Sample
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPAN = 32
"""Rounds per bar."""
BINS = 8
"""Bins of equally many rounds, in order of the expected tokens."""
COLORS = dict(zip(SOURCES, (YELLOW, PINK, ORANGE, BLUE, GREY), strict=True))


def accepted(runs: list[Run], published: list[Printed]) -> "Figure":
    """Tokens per round by source, bonus included, over the rounds of a run.

    Raises:
        SkipbenchError: the run has no such trace.
    """
    rounds = [letters for sample in _traced(runs[0]) for letters in sample.trace["source"]]
    spans = [rounds[at : at + SPAN] for at in range(0, len(rounds), SPAN)]
    x, below = [SPAN * number for number in range(len(spans))], [1.0] * len(spans)
    figure, axis = one_axis(6.4, 2.8)
    axis.bar(x, below, SPAN, align="edge", color=GREEN, label="bonus")
    for letter, name in SOURCES.items():
        heights = [statistics.fmean(text.count(letter) for text in span) for span in spans]
        if any(heights):
            color = COLORS[letter]
            axis.bar(x, heights, SPAN, below, align="edge", color=color, label=name)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    axis.set_xlabel("round")
    axis.set_ylabel(f"tokens per round\n(means of {SPAN})")
    beside(axis)
    return figure


def calibration(runs: list[Run], published: list[Printed]) -> "Figure":
    """Expected tokens per round against emitted ones, bonus included, in bins of equally many
    rounds; on the diagonal, as many were accepted as expected.

    Raises:
        SkipbenchError: the run has no such trace.
    """
    bins = calibration_bins(runs[0])
    figure, axis = one_axis(4.4, 3.6)
    most = max(value for pair in bins for value in pair)
    axis.plot([1, most], [1, most], color=GREY, linewidth=1, label="as expected")
    x, y = zip(*bins, strict=True)
    axis.plot(x, y, "o", color=BLUE, label=f"{len(bins)} bins of rounds")
    axis.set_xlabel("expected tokens per round")
    axis.set_ylabel("tokens per round")
    axis.legend(fontsize=7)
    return figure


def calibration_bins(run: Run) -> list[tuple[float, float]]:
    """Means of the expected and of the emitted tokens of the rounds of every bin.

    What EOS or the token limit cut off counts as emitted: it was accepted.
    """
    pairs = sorted(
        (expected, 1 + round.accepted)
        for sample in _traced(run)
        for expected, round in zip(sample.trace["expected"], sample.method.rounds, strict=True)
    )
    edges = [len(pairs) * number // BINS for number in range(BINS + 1)]
    found = [pairs[a:b] for a, b in itertools.pairwise(edges) if a < b]
    return [(statistics.fmean(e for e, _ in b), statistics.fmean(n for _, n in b)) for b in found]


def _traced(run: Run) -> list[Sample]:
    """Raises SkipbenchError where no sample says its sources."""
    found = [s for s in run.sound if s.trace.get("source") and s.trace.get("expected")]
    if not found:
        raise SkipbenchError(f"{run.method} says no source of its tokens; draw a run of auto")
    return found
