"""Quantities of runs by a setting, as lines or bars, with the values that papers print."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from skipbench.report import measured
from skipbench.report.definitions import LABELS
from skipbench.report.figures import style
from skipbench.report.figures.runs import labels
from skipbench.report.published import Printed
from skipbench.runs.run import Run


def value(run: Run, column: str, first: Run) -> float | None:
    """A quantity of `LABELS`; what is saved is saved against `first`."""
    ours, base = run.measured, first.measured
    if column == "share":
        return measured.measure(ours, "share", "adapt").value
    if column == "share_saved":
        return 1 - (ours.seconds.adapt or 0) / base.seconds.adapt if base.seconds.adapt else None
    if column == "memory_saved":
        # without a GPU, the peak of the process is of all its cells
        peak, unsaved = (m.peak_memory_bytes or 0 for m in (ours, base))
        return 1 - peak / unsaved if run.origin.device != "cpu" and peak and unsaved else None
    return measured.VALUES[column](ours)


def setting(run: Run, key: str) -> Any:
    """A setting such as `method.interval`; a group gives its name."""
    found = run.setting(key)
    return found["name"] if isinstance(found, dict) else found


def sweep(
    runs: list[Run],
    published: list[Printed],
    axis: str,
    columns: Sequence[str],
    label: str,
    key: str = "",
    mark: str = "best",
) -> Figure:
    """`columns` of `LABELS` against one setting, a line per method and dataset.

    Published values are stars where `key` (default: last name of `axis`) places them on the axis,
    else dashed lines; a published value of the axis is a dotted line, named by `mark`.
    """
    figure, axes = style.new_figure(1, len(columns), (2.4 + 3.0 * len(columns), 3.4))
    key = key or axis.rpartition(".")[2]
    settings, names = [setting(run, axis) for run in runs], labels(runs, (axis,))
    placed = sorted(zip(settings, names, runs, strict=True), key=lambda place: place[0])
    values, by_key = sorted({*settings}), {run.keys.get(key): x for x, _, run in placed}
    lines = {name: [(x, r) for x, n, r in placed if n == name] for name in dict.fromkeys(names)}
    styles = style.line_styles([members[0][1].method for members in lines.values()])
    for here, column in zip(axes[0], columns, strict=True):
        for (name, members), look in zip(lines.items(), styles, strict=True):
            first = members[0][1]
            known = [m for m in members if value(m[1], column, first) is not None]
            y = [value(run, column, first) for _, run in known]
            here.plot([x for x, _ in known], y, label=name, **look._asdict())
            for x, run in known if column == "speedup" else []:
                style.whisker(here, x, run.measured, look.color)
            if not known:
                here.set_title("measured on a GPU only", fontsize=8, loc="left")
                here.set_xlim(values[0], values[-1])
        for n, printed in with_values(published, key, column):
            at = by_key.get(n.keys.get(key), n.keys.get(key))
            if n.column == key:
                x, text = by_key.get(printed, printed), f"{mark} {printed:g}"
                style.published_line(here, x, text, True, linestyle=":")
                continue
            percent = n.column in ("share", "memory_saved")
            text = f"{100 * printed:g}%" if percent else f"{printed:g}"
            if isinstance(at, int | float) and math.isfinite(at):
                style.star(here, (at, printed), text)
            else:
                named = (*n.named(key), *n.named("method"), "")[0]
                style.published_line(here, printed, f"{named} {text}", linewidth=0.8)
        here.set(xlabel=label, ylabel=LABELS[column])
        whole = all(isinstance(v, int) for v in values)
        if whole and values[0] > 0 and values[-1] / values[0] >= 16:
            here.set_xscale("log", base=2)  # such as intervals, which are powers of two
            here.set_xticks(values, [str(v) for v in values], fontsize=7)
            here.minorticks_off()
    return figure


def with_values(published: Sequence[Printed], *columns: str) -> Iterator[tuple[Printed, float]]:
    """The numbers of `columns` that a paper's text still has, with their values."""
    return ((n, n.value) for n in published if n.column in columns and n.value is not None)


def bars(
    runs: list[Run],
    published: list[Printed],
    axis: str,
    columns: Sequence[str],
    by_set: bool = False,
) -> Figure:
    """`columns` in groups of bars, a group per value of `axis` (SWIFT Figures 2 and 9); `by_set`: a
    bar per task on which the skip set was searched, not per method.
    """
    names = labels(runs, (axis,))
    if by_set:
        names = [f"{run.axes.get('search.on', 'given')} LS" for run in runs]
    in_group = [str(setting(run, axis)) for run in runs]
    members, groups = list(dict.fromkeys(names)), list(dict.fromkeys(in_group))
    styles = [s.color for s in style.line_styles([runs[names.index(n)].method for n in members])]
    colors = dict(zip(members, style.TASKS if by_set else styles, strict=False))
    width = 0.8 / len(members)
    places = [
        groups.index(group) + (members.index(name) - (len(members) - 1) / 2) * width
        for group, name in zip(in_group, names, strict=True)
    ]
    size = 2.6 + max(2.6, 0.55 * len(groups) * len(members)) * len(columns), 3.4
    figure, axes = style.new_figure(1, len(columns), size)
    for here, column in zip(axes[0], columns, strict=True):
        for run, name, x in zip(runs, names, places, strict=True):
            if (height := value(run, column, run)) is None:
                continue
            here.bar(x, height, width * 0.92, color=colors[name], label=name)
            if column == "speedup":
                style.whisker(here, x, run.measured, "black")
        if column == "speedup":
            style.no_gain(here, 0.8)
        for n, printed in with_values(published, column, f"{column}_gain"):
            _published_bar(here, n, printed, list(zip(runs, places, strict=True)))
        here.set_xticks(range(len(groups)), groups, rotation=20 if len(groups) > 2 else 0)
        here.set(xlim=(-0.6, len(groups) - 0.4), ylabel=LABELS[column])
        here.grid(visible=False, axis="x")
    return figure


def _published_bar(
    here: Axes, n: Printed, printed: float, placed: Sequence[tuple[Run, float]]
) -> None:
    """A star over the bar of the same set and data; a line for a mean or a bound of several."""
    height = 1 + printed if (gain := n.column == "speedup_gain") else printed
    # An embedded dataset takes the place of a paper's, whose name the cell's keys keep.
    wanted = {k: v for k, v in n.keys.items() if k in ("set_from", "dataset")}
    matches = [x for run, x in placed if wanted.items() <= run.keys.items()]
    if matches and "set_from" in wanted:
        style.star(here, (matches[0], height), f"{height:g}")
        return
    text = " ".join((*n.named("method", "set_from", "dataset", "statistic"), f"{height:g}"))
    text += f" (+{100 * printed:g}%)" if gain else ""
    style.published_line(here, height, text, color=style.method_style(n.method).color)
