"""One number of runs against another: how well a predictor follows the throughput, skipped
sub-layers, the best of all sets.
"""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.figures import style
from skipbench.report.figures.sweeps import VALUES
from skipbench.report.published import Printed
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 10
"""Pairs up to which a correlation is hardly told from chance: at 10 its 95 % interval around 0 is
-0.6 to 0.6.
"""


def _points(here: "Axes", points: Sequence[tuple[float, float, Run]]) -> None:
    seen: set[str] = set()
    for x, y, run in points:
        look: dict[str, Any] = {**style.method_style(run.method), "s": 24, "zorder": 3}
        here.scatter([x], [y], label=None if run.method in seen else run.method, **look)
        seen.add(run.method)


def correlation(runs: list[Run], published: list[Printed]) -> "Figure":
    """TPT and acceptance rate of each run against its throughput, with Pearson's r (KnapSpec Figure
    2).
    """
    figure, axes = style.new_figure(1, 2, (8.4, 3.6))
    for here, column in zip(axes[0], ("TPT", "alpha"), strict=True):
        label, value = VALUES[column]
        pairs = [
            (v, rate, run)
            for run in runs
            if (v := value(run, run)) is not None
            and (rate := run.measured.tokens_per_s) is not None
        ]
        _points(here, pairs)
        text = f"r needs 3 runs that differ, here are {len(pairs)}"
        x, y = [p[0] for p in pairs], [p[1] for p in pairs]
        if len(pairs) > 2 and len({*x}) > 1 and len({*y}) > 1:
            r = statistics.correlation(x, y)
            few = ", too few to tell" if len(pairs) <= FEW else ""
            text = f"r = {r:.2f}, R² = {r * r:.2f} ({len(pairs)} runs{few})"
        printed = [
            f"paper: r = {n.value:g}"
            for n in published
            if n.column == "correlation" and n.named("part") == [column]
        ]
        here.set_title("\n".join([text, *printed]), fontsize=8, loc="left")
        here.set(xlabel=label, ylabel=VALUES["tokens_per_s"][0])
    style.legend(figure)
    return figure


def skipped(runs: list[Run], published: list[Printed]) -> "Figure":
    """Speedup over the share of sub-layers skipped, the best of each share joined by a dashed line
    (Self-SD Figure 4).
    """
    figure, here = style.one_axis(6.8)
    points = [
        (of.ratio, run.speedup, run)
        for run in runs
        if (of := run.measured.skipped) and of.ratio is not None and run.speedup is not None
    ]
    _points(here, points)
    best: dict[float, float] = {}
    for x, y, _ in points:
        best[round(x, 2)] = max(y, best.get(round(x, 2), y))
    look = {"color": style.GREY, "linestyle": "--", "linewidth": 1}
    here.plot(sorted(best), [best[x] for x in sorted(best)], label="best of each", **look)
    style.no_gain(here)
    for n in published:
        if n.column == "skipped_layers" and n.value is not None:
            # The paper counts attention and MLP apart: its 40 layers are 80.
            text = f"falls beyond {n.value:g} of 80"
            style.published_line(here, n.value / 80, text, style=":", upright=True)
    here.set(xlabel="share of sub-layers skipped", ylabel="speedup (x)")
    style.legend(figure)
    return figure


class BruteForce(msgspec.Struct):
    """A line that scripts/brute_force.py prints: similarity lost against the best of all sets."""

    programme: str
    cases: int
    lost: float
    random_lost: float


def brute_force(lines: list[Any]) -> "Figure":
    """Loss of the programme's set and of a random set against the best of all sets (CLaSp Figure
    3b).

    Raises:
        SkipbenchError: no lines, or one that is no `BruteForce`.
    """
    try:
        found = msgspec.convert(lines, list[BruteForce])
    except msgspec.ValidationError:
        found = []
    if not found:
        raise SkipbenchError(
            f"wanted lines with {', '.join(BruteForce.__struct_fields__)}; make them with python "
            "scripts/brute_force.py > FILE"
        )
    figure, axis = style.one_axis(7.4, 1.6 + 0.5 * len(found))
    for offset, label, color, lost in (
        (-0.2, "programme", style.GREEN, [line.lost for line in found]),
        (0.2, "random set", style.GREY, [line.random_lost for line in found]),
    ):
        places = [i + offset for i in range(len(found))]
        bars = axis.barh(places, lost, height=0.38, color=color, label=label)
        axis.bar_label(bars, fmt="%.3g", fontsize=7, padding=2)
    axis.set_yticks(range(len(found)), [f"{line.programme} (n={line.cases})" for line in found])
    axis.set_xlabel("cosine similarity lost against brute force")
    axis.invert_yaxis()
    style.legend(figure)
    return figure
