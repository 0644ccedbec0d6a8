"""Figures of a run of `auto`: where its tokens come from, and how many it expected."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from skipbench.errors import SkipbenchError
from skipbench.report.figures import style
from skipbench.report.published import Printed
from skipbench.runs.record import SOURCES, Sample
from skipbench.runs.run import Run

SPAN = 32  # rounds per bar of the sources
BINS = 8  # bins of equally many rounds, in order of the expected tokens
_COLORS = (style.YELLOW, style.PINK, style.ORANGE, style.BLUE, style.GREY)
COLORS = dict(zip(SOURCES.values(), _COLORS, strict=True))


def accepted(runs: list[Run], published: list[Printed]) -> Figure:
    """Tokens per round of a run of `auto` by source, bonus included, over its rounds."""
    rounds = [letters for _, source, _ in _traced(runs[0]) for letters in source]
    counts = pd.DataFrame({s: [r.count(letter) for r in rounds] for letter, s in SOURCES.items()})
    means = counts.groupby(counts.index // SPAN).mean()
    below = 1 + means.cumsum(axis=1) - means
    figure, axis = style.one_axis(6.4, 2.8)
    x = SPAN * means.index
    axis.bar(x, 1.0, SPAN, align="edge", color=style.GREEN, label="bonus")
    for name in means.columns[means.any()]:
        color = COLORS[name]
        axis.bar(x, means[name], SPAN, below[name], align="edge", color=color, label=name)
    axis.set(xlabel="round", ylabel=f"tokens per round\n(means of {SPAN})")
    style.beside(axis)
    return figure


def calibration(runs: list[Run], published: list[Printed]) -> Figure:
    """Expected tokens per round of `auto` against emitted ones, in bins of equally many rounds."""
    bins = calibration_bins(runs[0])
    figure, axis = style.one_axis(4.4, 3.6)
    end = max(max(pair) for pair in bins)
    axis.plot([1, end], [1, end], color=style.GREY, linewidth=1, label="as expected")
    axis.plot(*zip(*bins, strict=True), "o", color=style.BLUE, label=f"{len(bins)} bins of rounds")
    axis.set(xlabel="expected tokens per round", ylabel="tokens per round")
    axis.legend(fontsize=7)
    return figure


def calibration_bins(run: Run) -> list[tuple[float, float]]:
    """Mean expected and emitted tokens of the rounds of each bin; tokens that are cut off count."""
    pairs = sorted(
        (expected, 1 + round.accepted)
        for sample, _, tokens in _traced(run)
        for expected, round in zip(tokens, sample.method.rounds, strict=True)
    )
    bins = np.split(np.array(pairs), [len(pairs) * number // BINS for number in range(1, BINS)])
    means = (part.mean(axis=0) for part in bins if len(part))
    return [(float(expected), float(emitted)) for expected, emitted in means]


def _traced(run: Run) -> list[tuple[Sample, list[str], list[float]]]:
    """Samples with the sources and the expected tokens of their rounds."""
    traces = [(s, s.trace.get("source"), s.trace.get("expected")) for s in run.sound]
    if found := [(s, source, tokens) for s, source, tokens in traces if source and tokens]:
        return found
    raise SkipbenchError(f"{run.method} says no source of its tokens; draw a run of auto")
