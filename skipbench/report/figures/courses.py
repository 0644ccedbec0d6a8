"""Quantities over time: the course of a run over its samples, the threshold over its rounds, and
where the time goes.
"""

import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

from skipbench.errors import SkipbenchError
from skipbench.report.figures import style
from skipbench.report.figures.runs import acceptances, labels, speedups
from skipbench.report.published import Printed
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOW = 64
"""Rounds of the moving mean of a threshold, as Self-SD's Figure 5 has it."""


def _matchness(run: Run) -> list[tuple[int, float]]:
    """`(sample, best matchness)` after each sample in which a trial was made."""
    found = []
    for number, sample in enumerate(run.sound, 1):
        values = [v for v in sample.trace.get("best", []) if isinstance(v, int | float)]
        found += [(number, float(values[-1]))] if values else []
    return found


Course = Callable[[Run], Sequence[tuple[int, float]]]
COURSES: dict[str, tuple[str, Course]] = {
    "alpha": ("acceptance rate", lambda run: list(enumerate(acceptances(run), 1))),
    "matchness": ("best matchness", _matchness),
    "speedup": ("speedup (x)", lambda run: list(enumerate(speedups(run), 1))),
}
"""Label of the axis, and number and value of samples."""


def course(runs: list[Run], published: list[Printed]) -> "Figure":
    """Acceptance, matchness where the method has it, and speedup over samples (SWIFT Figures 6 and
    7).

    The tasks of a stream are shaded bands. Published values are dashed lines.
    """
    matched = any(n.column == "matchness" for n in published) or any(map(_matchness, runs))
    columns = [column for column in COURSES if matched or column != "matchness"]
    figure, axes = style.new_figure(len(columns), 1, (6.4, 1.2 + 1.9 * len(columns)))
    names, styles = labels(runs), style.line_styles([run.method for run in runs])
    for axis, column in zip(axes[:, 0], columns, strict=True):
        text, points = COURSES[column]
        for run, name, look in zip(runs, names, styles, strict=True):
            if found := points(run):
                x, y = zip(*found, strict=True)
                axis.plot(x, y, label=name, markersize=3, linewidth=1.2, **look)
        _published_lines(axis, published, column)
        axis.set_ylabel(text)
        style.beside(axis)
    for axis in axes[:, 0]:
        _bands(axis, runs[0])
    axes[-1, 0].set_xlabel("sample")
    axes[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    return figure


def _published_lines(axis: "Axes", published: list[Printed], column: str) -> None:
    lines: dict[str, int] = {}
    for n in published:
        if n.column == column and n.value is not None:
            number = lines[n.method] = lines.get(n.method, -1) + 1
            text = f"{', '.join(n.named('method', 'phase', 'statistic'))} {n.value:g}"
            look = ("--", ":", "-.")[number % 3]
            style.published_line(axis, n.value, text, style.color_of(n.method), look)
    ends = {n.column: n for n in published}
    low, high = (ends.get(f"{column}_{end}") for end in ("low", "high"))
    if low and high and low.value is not None and high.value is not None:
        color, text = style.color_of(low.method), f"{low.method} {low.value:g}"
        label = f"paper: {text} to {high.value:g}"
        axis.axhspan(low.value, high.value, color=color, alpha=0.12, linewidth=0, label=label)


def _bands(axis: "Axes", run: Run) -> None:
    tasks = [s.groups.get("task") or s.groups.get("dataset") for s in run.sound]
    start, above = 0.5, axis.get_xaxis_transform()
    for number, (task, part) in enumerate(groupby(tasks)):
        end = start + len(list(part))
        if task is not None:
            axis.axvspan(
                start, end, color=style.GREY, alpha=0.06 + 0.12 * (number % 2), linewidth=0
            )
            axis.text(start, 1.0, f" {task}", transform=above, fontsize=7, va="bottom")
        start = end


def breakdown(runs: list[Run], published: list[Printed]) -> "Figure":
    """Share of each phase in the method's time, one bar per run (SWIFT Figure 6b, CLaSp Figure 3c,
    Self-SD Table 5).
    """
    figure, axis = style.one_axis(6.4, 1.6 + 0.4 * len(runs))
    left = [0.0] * len(runs)
    for phase, color in style.PHASES.items():
        seconds = [run.measured.seconds.by_phase for run in runs]
        shares = [100 * of[phase] / sum(of.values()) for of in seconds]
        axis.barh(range(len(runs)), shares, left=left, color=color, label=phase, height=0.6)
        for place, (share, at) in enumerate(zip(shares, left, strict=True)):
            if share >= 4:
                look = {"ha": "center", "va": "center", "fontsize": 7, "color": "white"}
                axis.text(at + share / 2, place, f"{share:.0f}%", **look)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    names = labels(runs)
    for n in published:
        if n.column == "share" and n.value is not None:
            _published_share(axis, len(names), 100 * n.value)
            names.append(f"paper: {n.method}, adapt")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the method's time (%)")
    style.beside(axis)
    return figure


def _published_share(axis: Any, at: int, share: float) -> None:
    """A bar of the share that the paper prints, the rest hatched: what the text does not say."""
    axis.barh(at, share, color=style.PHASES["adapt"], height=0.6)
    rest, hatched = 100 - share, {"facecolor": "none", "edgecolor": style.GREY, "hatch": "//"}
    axis.barh(at, rest, left=share, height=0.6, label="not printed", **hatched)
    box = {"facecolor": "white", "pad": 1, "lw": 0}
    axis.text(share + 1, at, f"{share:g}%", va="center", fontsize=7, bbox=box)


def threshold(runs: list[Run], published: list[Printed]) -> "Figure":
    """The stop threshold over the rounds of all samples: moving mean and deviation of 64 rounds
    (Self-SD Figure 5).
    """
    figure, axis = style.one_axis(7.4)
    for run, name, look in zip(
        runs, labels(runs), style.line_styles([run.method for run in runs]), strict=True
    ):
        values = [v for s in run.sound for v in s.trace.get("threshold", [])]
        if not values:
            raise SkipbenchError(
                f"{run.folder} has no threshold in its trace; draw a method with a stop rule"
            )
        windows = [values[max(0, i - WINDOW + 1) : i + 1] for i in range(len(values))]
        x, mean = range(1, len(values) + 1), [statistics.fmean(w) for w in windows]
        spread, color = [statistics.pstdev(w) for w in windows], look["color"]
        axis.plot(x, mean, color=color, linewidth=1.2, label=f"{name}: threshold")
        low, high = ([m + sign * d for m, d in zip(mean, spread, strict=True)] for sign in (-1, 1))
        axis.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
        if len(runs) == 1:  # of several, the thresholds are what is compared
            rounds = [r for s in run.sound for r in s.method.rounds]
            steps = accumulate(r.steps for r in rounds)
            accepted = accumulate(r.accepted for r in rounds)
            rates = [a / s if s else float("nan") for s, a in zip(steps, accepted, strict=True)]
            text = f"{name}: acceptance rate so far"
            axis.plot(range(1, len(rates) + 1), rates, ":", label=text, color=color, linewidth=1.0)
    axis.set(xlabel="round", ylabel="threshold" if len(runs) > 1 else "threshold; acceptance rate")
    style.legend(figure)
    return figure
