"""Bars side by side: methods by task, sets of one task on another, speedup by model."""

from typing import TYPE_CHECKING, Any

from skipbench.report.figures.runs import labels
from skipbench.report.figures.style import GREY, legend, line_styles, new_figure, star, whisker
from skipbench.report.figures.sweeps import VALUES, setting
from skipbench.report.published import Row
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Of bars that are told apart by a task, not by a method."""


def grouped(
    runs: list[Run], published: list[Row], axis: str, columns: list[str], by_set: bool = False
) -> "Figure":
    """`columns` in groups of bars, a group a value of `axis` (SWIFT Figures 2 and 9).

    Args:
        by_set: whether the bars of a group are the tasks on which their skip sets were searched,
            else methods.
    """
    names = [_set_of(r) for r in runs] if by_set else labels(runs, (axis,))
    members = list(dict.fromkeys(names))
    groups = list(dict.fromkeys(str(setting(r, axis)) for r in runs))
    first = {name: runs[names.index(name)] for name in members}
    styles = [s["color"] for s in line_styles([first[n].method for n in members])]
    colors = dict(zip(members, SETS if by_set else styles, strict=False))
    width = 0.8 / len(members)
    figure, axes = new_figure(
        1, len(columns), (2.6 + max(2.6, 0.55 * len(groups) * len(members)) * len(columns), 3.4)
    )
    for here, column in zip(axes[0], columns, strict=True):
        where: dict[tuple[str, str], float] = {}
        for run, name in zip(runs, names, strict=True):
            x = (
                groups.index(str(setting(run, axis)))
                + (members.index(name) - (len(members) - 1) / 2) * width
            )
            where[name, str(setting(run, axis))] = x
            if (value := VALUES[column][1](run, run)) is None:
                continue
            here.bar(x, value, width * 0.92, color=colors[name], label=name)
            if column == "speedup":
                whisker(here, x, run.measured, "black")
        if column == "speedup":
            here.axhline(1.0, color=GREY, linewidth=0.8)
        _published(here, runs, names, where, published, column, axis)
        here.set_xticks(range(len(groups)), groups, rotation=20 if len(groups) > 2 else 0)
        here.set_xlim(-0.6, len(groups) - 0.4)
        here.set(ylabel=VALUES[column][0])
        here.grid(visible=False, axis="x")
    legend(figure)
    return figure


def _set_of(run: Run) -> str:
    return f"{run.search.on} LS" if run.search else "given LS"


def _published(
    here: Any,
    runs: list[Run],
    names: list[str],
    where: dict[tuple[str, str], float],
    published: list[Row],
    column: str,
    axis: str,
) -> None:
    """A star over the bar that stands for the printed value; a line where it is a mean or a bound
    of several bars.
    """
    for row in published:
        if row["value"] is None:
            continue
        value = 1 + row["value"] if row["column"] == "speedup_gain" else row["value"]
        if row["column"] not in (column, f"{column}_gain"):
            continue
        wanted: dict[str, Any] = {k: row[k] for k in ("set_from", "dataset") if k in row}
        # An embedded dataset stands for a paper's, whose name the cell's keys keep.
        match = (
            [(r, n) for r, n in zip(runs, names, strict=True) if _keys(r, wanted)]
            if "set_from" in row
            else []
        )
        if match:
            run, name = match[0]
            star(here, where[name, str(setting(run, axis))], value, f"{value:g}")
            continue
        told = " ".join(
            str(row[k]) for k in ("method", "set_from", "dataset", "statistic") if k in row
        )
        gain = f" (+{100 * row['value']:g}%)" if row["column"] == "speedup_gain" else ""
        color = line_styles([str(row.get("method"))])[0]["color"]
        label = f"paper: {told} {value:g}{gain}"
        here.axhline(value, color=color, linestyle="--", linewidth=1, label=label)


def _keys(run: Run, wanted: dict[str, Any]) -> bool:
    return all(run.keys.get(k) == v for k, v in wanted.items())
