"""Bars side by side: methods by task, sets of one task on another, speedup by model."""

from typing import TYPE_CHECKING

from skipbench.report.figures import style
from skipbench.report.figures.runs import labels
from skipbench.report.figures.sweeps import VALUES, setting
from skipbench.report.published import Printed
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def grouped(
    runs: list[Run], published: list[Printed], axis: str, columns: list[str], by_set: bool = False
) -> "Figure":
    """`columns` in groups of bars, one group per value of `axis` (SWIFT Figures 2 and 9).

    Args:
        by_set: whether the bars of a group are the tasks on which their skip sets were searched,
            else methods.
    """
    names = (
        [f"{run.search.on} LS" if run.search else "given LS" for run in runs]
        if by_set
        else labels(runs, (axis,))
    )
    members = list(dict.fromkeys(names))
    groups = list(dict.fromkeys(str(setting(run, axis)) for run in runs))
    styles = [s["color"] for s in style.line_styles([runs[names.index(n)].method for n in members])]
    colors = dict(zip(members, style.TASKS if by_set else styles, strict=False))
    width = 0.8 / len(members)
    places = [
        groups.index(str(setting(run, axis)))
        + (members.index(name) - (len(members) - 1) / 2) * width
        for run, name in zip(runs, names, strict=True)
    ]
    figure, axes = style.new_figure(
        1, len(columns), (2.6 + max(2.6, 0.55 * len(groups) * len(members)) * len(columns), 3.4)
    )
    for here, column in zip(axes[0], columns, strict=True):
        for run, name, x in zip(runs, names, places, strict=True):
            if (value := VALUES[column][1](run, run)) is None:
                continue
            here.bar(x, value, width * 0.92, color=colors[name], label=name)
            if column == "speedup":
                style.whisker(here, x, run.measured, "black")
        if column == "speedup":
            style.no_gain(here, 0.8)
        _published(
            here, runs, places, [n for n in published if n.column in (column, f"{column}_gain")]
        )
        here.set_xticks(range(len(groups)), groups, rotation=20 if len(groups) > 2 else 0)
        here.set_xlim(-0.6, len(groups) - 0.4)
        here.set(ylabel=VALUES[column][0])
        here.grid(visible=False, axis="x")
    style.legend(figure)
    return figure


def _published(
    here: "Axes", runs: list[Run], places: list[float], published: list[Printed]
) -> None:
    """A star over the bar of the same set and data; a line where the printed value is a mean or a
    bound of several bars.
    """
    for n in published:
        if n.value is None:
            continue
        value = 1 + n.value if n.column == "speedup_gain" else n.value
        # An embedded dataset stands for a paper's, whose name the cell's keys keep.
        wanted = {k: v for k, v in n.keys.items() if k in ("set_from", "dataset")}
        matches = [
            x
            for run, x in zip(runs, places, strict=True)
            if "set_from" in wanted and wanted.items() <= run.keys.items()
        ]
        if matches:
            style.star(here, (matches[0], value), f"{value:g}")
            continue
        named = " ".join(n.named("method", "set_from", "dataset", "statistic"))
        gain = f" (+{100 * n.value:g}%)" if n.column == "speedup_gain" else ""
        color = style.color_of(n.method)
        style.published_line(here, value, f"{named} {value:g}{gain}", color)
