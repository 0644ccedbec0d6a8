"""Quantities over samples or rounds: courses of a run, thresholds, shares of phases."""

from collections import Counter
from collections.abc import Callable
from itertools import groupby

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from skipbench.errors import SkipbenchError
from skipbench.report.figures import style
from skipbench.report.figures.runs import acceptances, labels, speedups
from skipbench.report.figures.sweeps import with_values
from skipbench.report.published import Printed
from skipbench.runs.run import Run

WINDOW = 64  # rounds of the moving mean of a threshold, as in Self-SD's Figure 5


def _matchness(run: Run) -> dict[int, float]:
    """Best matchness after each sample in which a trial was made."""
    found = {}
    for number, arm in enumerate(run.arms, 1):
        if values := [v for v in arm.trace.get("best", []) if isinstance(v, int | float)]:
            found[number] = float(values[-1])
    return found


COURSES: dict[str, tuple[str, Callable[[Run], dict[int, float]]]] = {
    "alpha": ("acceptance rate", lambda run: dict(enumerate(acceptances(run), 1))),
    "matchness": ("best matchness", _matchness),
    "speedup": ("speedup (x)", lambda run: dict(enumerate(speedups(run), 1))),
}  # label of the axis, and values by the number of a sample


def course(runs: list[Run], published: list[Printed]) -> Figure:
    """Acceptance, matchness if any, and speedup over samples (SWIFT Figures 6 and 7)."""
    matched = any(n.column == "matchness" for n in published) or any(map(_matchness, runs))
    columns = [column for column in COURSES if matched or column != "matchness"]
    figure, axes = style.new_figure(len(columns), 1, (6.4, 1.2 + 1.9 * len(columns)))
    named = set[str]()  # a legend names each line once
    for axis, column in zip(axes[:, 0], columns, strict=True):
        text, points = COURSES[column]
        for run, name, look in style.lines(runs):
            if found := points(run):
                x, y, label = list(found), list(found.values()), None if name in named else name
                axis.plot(x, y, label=label, markersize=3, linewidth=1.2, **look._asdict())
                named.add(name)
        if column == "speedup":
            style.no_gain(axis)
        _published_lines(axis, published, column)
        axis.set_ylabel(text)
        if axis.get_legend_handles_labels()[1]:
            style.beside(axis)
    for axis in axes[:, 0]:
        _bands(axis, runs[0])
    axes[-1, 0].set_xlabel("sample")
    style.whole_numbers(axes[-1, 0].xaxis)
    return figure


def _published_lines(axis: Axes, published: list[Printed], column: str) -> None:
    lines = Counter[str]()
    for n, value in with_values(published, column):
        text = f"{', '.join(n.named('method', 'phase', 'statistic'))} {value:g}"
        color, dashes = style.method_style(n.method).color, ("--", ":", "-.")[lines[n.method] % 3]
        style.published_line(axis, value, text, color=color, linestyle=dashes)
        lines[n.method] += 1
    lows = with_values(published, f"{column}_low")
    highs = with_values(published, f"{column}_high")
    for (n, low), (_, high) in zip(lows, highs, strict=False):
        label, color = f"paper: {n.method} {low:g} to {high:g}", style.method_style(n.method).color
        axis.axhspan(low, high, color=color, alpha=0.12, linewidth=0, label=label)


def _bands(axis: Axes, run: Run) -> None:
    tasks = [s.groups.get("task") or s.groups.get("dataset") for s in run.sound]
    start, above = 0.5, axis.get_xaxis_transform()
    for number, (task, part) in enumerate(groupby(tasks)):
        end = start + len(list(part))
        if task is not None:
            shade = 0.06 + 0.12 * (number % 2)
            axis.axvspan(start, end, color=style.GREY, alpha=shade, linewidth=0)
            axis.text(start, 1.0, f" {task}", transform=above, fontsize=7, va="bottom")
        start = end


def breakdown(runs: list[Run], published: list[Printed]) -> Figure:
    """Share of each phase in the method's time (SWIFT Figure 6b, CLaSp 3c, Self-SD Table 5)."""
    figure, axis = style.one_axis(6.4, 1.6 + 0.4 * len(runs))
    seconds = pd.DataFrame([run.measured.seconds.by_phase for run in runs])
    shares = 100 * seconds[list(style.PHASES)].div(seconds.sum(axis=1), axis=0)
    ends = shares.cumsum(axis=1)
    for phase, color in style.PHASES.items():
        left = ends[phase] - shares[phase]
        axis.barh(shares.index, shares[phase], left=left, color=color, label=phase, height=0.6)
        for place, share in shares[phase].items():
            if share >= 4:
                look = {"ha": "center", "va": "center", "fontsize": 7, "color": "white"}
                axis.text(left[place] + share / 2, place, f"{share:.0f}%", **look)
    names = labels(runs)
    for n, share in with_values(published, "share"):
        # the rest, which the paper's text does not give, is hatched
        printed, place = 100 * share, len(names)
        axis.barh(place, printed, color=style.PHASES["adapt"], height=0.6)
        rest = {"facecolor": "none", "edgecolor": style.GREY, "hatch": "//", "label": "not printed"}
        axis.barh(place, 100 - printed, left=printed, height=0.6, **rest)
        box = {"facecolor": "white", "pad": 1, "lw": 0}
        axis.text(printed + 1, place, f"{printed:g}%", va="center", fontsize=7, bbox=box)
        names.append(f"paper: {n.method}, adapt")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set(xlim=(0, 100), xlabel="share of the method's time (%)")
    style.beside(axis)
    return figure


def threshold(runs: list[Run], published: list[Printed]) -> Figure:
    """The stop threshold over all rounds: moving mean and deviation of 64 (Self-SD Figure 5)."""
    figure, axis = style.one_axis(7.4)
    for run, name, look in style.lines(runs):
        traced = [v for arm in run.arms for v in arm.trace.get("threshold", [])]
        values = pd.Series(traced, dtype=float)
        if values.empty:
            raise SkipbenchError(
                f"{run.folder} has no threshold in its trace; draw a method with a stop rule"
            )
        windows, color, x = values.rolling(WINDOW, 1), look.color, values.index + 1
        mean, spread = windows.mean(), windows.std(ddof=0)
        axis.plot(x, mean, color=color, linewidth=1.2, label=f"{name}: threshold")
        axis.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)
        if len(runs) == 1:  # of several, the thresholds are compared
            rounds = pd.DataFrame([r for arm in run.arms for r in arm.rounds])
            rates = rounds.accepted.cumsum() / rounds.steps.cumsum()
            text = f"{name}: acceptance rate so far"
            axis.plot(rates.index + 1, rates, ":", label=text, color=color, linewidth=1.0)
    axis.set(xlabel="round", ylabel="threshold" if len(runs) > 1 else "threshold; acceptance rate")
    return figure
