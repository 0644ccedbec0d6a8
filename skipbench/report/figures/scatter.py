"""One number of runs against another: how well a predictor follows the throughput, skipped
sub-layers, the best of all sets.
"""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skipbench.errors import SkipbenchError
from skipbench.report.figures.style import GREEN, GREY, legend, method_style, new_figure
from skipbench.report.figures.sweeps import VALUES
from skipbench.report.measured import measure
from skipbench.report.published import Row
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 10
"""Pairs up to which a correlation is told apart from chance badly: at 10 its 95 % interval around 0
is -0.6 to 0.6.
"""


def _points(here: Any, points: Sequence[tuple[float, float, Run]]) -> None:
    seen: set[str] = set()
    for x, y, run in points:
        label = None if run.method in seen else run.method
        seen.add(run.method)
        here.scatter([x], [y], label=label, s=24, zorder=3, **method_style(run.method))


def correlation(runs: list[Run], published: list[Row]) -> "Figure":
    """TPT and acceptance rate of each run against its throughput, with Pearson's r (KnapSpec Figure
    2).
    """
    figure, axes = new_figure(1, 2, (8.4, 3.6))
    for here, column in zip(axes[0], ("TPT", "alpha"), strict=True):
        x = [VALUES[column][1](run, run) for run in runs]
        pairs = [
            (v, rate, run)
            for v, run in zip(x, runs, strict=True)
            if v is not None and (rate := run.measured.tokens_per_s) is not None
        ]
        _points(here, pairs)
        text = f"r needs 3 runs that differ, here are {len(pairs)}"
        if len(pairs) > 2 and len({p[0] for p in pairs}) > 1 and len({p[1] for p in pairs}) > 1:
            r = statistics.correlation([p[0] for p in pairs], [p[1] for p in pairs])
            few = ", too few to tell" if len(pairs) <= FEW else ""
            text = f"r = {r:.2f}, R² = {r * r:.2f} ({len(pairs)} runs{few})"
        printed = [
            r["value"]
            for r in published
            if r["column"] == "correlation" and r.get("part") == column
        ]
        here.set_title(
            "\n".join([text, *(f"paper: r = {v:g}" for v in printed)]), fontsize=8, loc="left"
        )
        here.set(xlabel=VALUES[column][0], ylabel=VALUES["tokens_per_s"][0])
    legend(figure)
    return figure


def skipped(runs: list[Run], published: list[Row]) -> "Figure":
    """Speedup over the share of sub-layers skipped, the best of each share joined by a dashed line
    (Self-SD Figure 4).
    """
    figure, axes = new_figure(1, 1, (6.8, 3.8))
    here = axes[0, 0]
    points = [
        (x, y, r)
        for r in runs
        if (x := measure(r.measured, "ratio")[0]) is not None and (y := r.speedup) is not None
    ]
    _points(here, points)
    best: dict[float, float] = {}
    for x, y, _ in points:
        best[round(x, 2)] = max(y, best.get(round(x, 2), y))
    here.plot(
        sorted(best),
        [best[x] for x in sorted(best)],
        color=GREY,
        linestyle="--",
        linewidth=1,
        label="best of each",
    )
    here.axhline(1.0, color=GREY, linewidth=0.6)
    for row in published:
        if row["column"] == "skipped_layers":
            # The paper counts attention and MLP apart: its 40 layers are 80.
            text = f"paper: falls beyond {row['value']:g} of 80"
            here.axvline(row["value"] / 80, color="black", linestyle=":", linewidth=1, label=text)
    here.set(xlabel="share of sub-layers skipped", ylabel="speedup (x)")
    legend(figure)
    return figure


def brute_force(lines: list[dict[str, Any]]) -> "Figure":
    """What the programme's set and a random set lose against the best of all sets (CLaSp Figure
    3b).

    `lines` are those that scripts/brute_force.py prints: `programme`, `cases`, `lost`,
    `random_lost`.

    Raises:
        SkipbenchError: no lines, or one without these keys.
    """
    wanted = ("programme", "cases", "lost", "random_lost")
    if not lines or any(key not in line for line in lines for key in wanted):
        raise SkipbenchError(
            f"wanted lines with {', '.join(wanted)}; make them with python "
            "scripts/brute_force.py > FILE"
        )
    figure, axes = new_figure(1, 1, (7.4, 1.6 + 0.5 * len(lines)))
    for offset, key, label, color in (
        (-0.2, "lost", "programme", GREEN),
        (0.2, "random_lost", "random set", GREY),
    ):
        places = [i + offset for i in range(len(lines))]
        bars = axes[0, 0].barh(
            places, [line[key] for line in lines], height=0.38, color=color, label=label
        )
        axes[0, 0].bar_label(bars, fmt="%.3g", fontsize=7, padding=2)
    axes[0, 0].set_yticks(
        range(len(lines)), [f"{line['programme']} (n={line['cases']})" for line in lines]
    )
    axes[0, 0].set_xlabel("cosine similarity lost against brute force")
    axes[0, 0].invert_yaxis()
    legend(figure)
    return figure
