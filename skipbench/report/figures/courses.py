"""Quantities over time: the course of a run over its samples, the threshold over its rounds, and
where the time goes.
"""

import statistics
from itertools import groupby
from typing import TYPE_CHECKING

from skipbench.errors import SkipbenchError
from skipbench.report.figures.runs import acceptances, labels, speedups
from skipbench.report.figures.style import (
    GREY,
    PHASES,
    legend,
    line_styles,
    method_style,
    new_figure,
)
from skipbench.report.published import Row
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOW = 64
"""Rounds of the moving mean of a threshold, as Self-SD's Figure 5 has it."""


def course(runs: list[Run], published: list[Row]) -> "Figure":
    """Acceptance, matchness where the method has it, and speedup over samples (SWIFT Figures 6 and
    7).

    The tasks of a stream are shaded bands. Published values are dashed lines.
    """
    matched = {id(run): _matchness(run) for run in runs}
    told = any(matched.values()) or any(row["column"] == "matchness" for row in published)
    columns = ["alpha", *(["matchness"] if told else []), "speedup"]
    figure, axes = new_figure(len(columns), 1, (6.4, 1.2 + 1.9 * len(columns)))
    names, styles = labels(runs), line_styles([run.method for run in runs])
    for axis, column in zip(axes[:, 0], columns, strict=True):
        for run, name, style in zip(runs, names, styles, strict=True):
            x = list(range(1, len(run.sound) + 1))
            y = {"alpha": acceptances(run), "speedup": speedups(run)}.get(column)
            if y is None:
                x, y = [i for i, _ in matched[id(run)]], [v for _, v in matched[id(run)]]
            if y:
                axis.plot(x, y, label=name, markersize=3, linewidth=1.2, **style)
        _reference_lines(axis, published, column)
        axis.set_ylabel(
            {"alpha": "acceptance rate", "matchness": "best matchness", "speedup": "speedup (x)"}[
                column
            ]
        )
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axis in axes[:, 0]:
        _bands(axis, runs[0])
    axes[-1, 0].set_xlabel("sample")
    axes[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    return figure


def _matchness(run: Run) -> list[tuple[int, float]]:
    """`(sample, best matchness)` after each sample in which a trial was made."""
    found = []
    for number, sample in enumerate(run.sound, 1):
        values = [v for v in sample.trace.get("best", []) if isinstance(v, int | float)]
        if values:
            found.append((number, float(values[-1])))
    return found


def _reference_lines(axis: "Axes", published: list[Row], column: str) -> None:
    lines: dict[str, int] = {}
    for row in published:
        if row["column"] == column and row["value"] is not None:
            number = lines[str(row.get("method"))] = lines.get(str(row.get("method")), -1) + 1
            named = ", ".join(str(row[k]) for k in ("method", "phase", "statistic") if k in row)
            color = method_style(str(row.get("method")))["color"]
            label = f"paper: {named} {row['value']:g}"
            axis.axhline(
                row["value"],
                color=color,
                linestyle=("--", ":", "-.")[number % 3],
                linewidth=1.0,
                label=label,
            )
    ends = {r["column"]: r for r in published if r["column"] in (f"{column}_low", f"{column}_high")}
    if len(ends) == 2:
        low, high = (ends[f"{column}_{end}"] for end in ("low", "high"))
        color, label = (
            method_style(str(low["method"]))["color"],
            f"paper: {low['method']} {low['value']:g} to {high['value']:g}",
        )
        axis.axhspan(low["value"], high["value"], color=color, alpha=0.12, linewidth=0, label=label)


def _bands(axis: "Axes", run: Run) -> None:
    tasks = [s.groups.get("task") or s.groups.get("dataset") for s in run.sound]
    start = 0.5
    for number, (task, part) in enumerate(groupby(tasks)):
        end = start + len(list(part))
        if task is not None:
            axis.axvspan(start, end, color=GREY, alpha=0.06 + 0.12 * (number % 2), linewidth=0)
            axis.text(
                start,
                1.0,
                f" {task}",
                transform=axis.get_xaxis_transform(),
                fontsize=7,
                va="bottom",
            )
        start = end


def breakdown(runs: list[Run], published: list[Row]) -> "Figure":
    """Share of each phase in the method's time, one bar per run (SWIFT Figure 6b, CLaSp Figure 3c,
    Self-SD Table 5).
    """
    figure, axes = new_figure(1, 1, (6.4, 1.6 + 0.4 * len(runs)))
    axis = axes[0, 0]
    names = labels(runs)
    left = [0.0] * len(runs)
    totals = [sum(run.measured.seconds.by_phase.values()) for run in runs]
    for phase, color in PHASES.items():
        shares = [
            100 * run.measured.seconds.by_phase[phase] / t
            for run, t in zip(runs, totals, strict=True)
        ]
        axis.barh(range(len(runs)), shares, left=left, color=color, label=phase, height=0.6)
        for place, (share, at) in enumerate(zip(shares, left, strict=True)):
            if share >= 4:
                axis.text(
                    at + share / 2,
                    place,
                    f"{share:.0f}%",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white",
                )
        left = [a + b for a, b in zip(left, shares, strict=True)]
    names += _printed_shares(axis, len(runs), published)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the method's time (%)")
    axis.legend(fontsize=7, ncols=1, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _printed_shares(axis: "Axes", place: int, published: list[Row]) -> list[str]:
    """Bars of the shares that the paper prints, the rest hatched: what the text does not say.

    Returns their names.
    """
    names: list[str] = []
    for row in published:
        if row["column"] != "share" or row["value"] is None:
            continue
        share, at = 100 * row["value"], place + len(names)
        axis.barh(at, share, color=PHASES["adapt"], height=0.6)
        label = "not printed"
        axis.barh(
            at,
            100 - share,
            left=share,
            facecolor="none",
            edgecolor=GREY,
            hatch="//",
            height=0.6,
            label=label,
        )
        axis.text(
            share + 1,
            at,
            f"{share:g}%",
            va="center",
            fontsize=7,
            bbox={"facecolor": "white", "pad": 1, "lw": 0},
        )
        names.append(f"paper: {row['method']}, adapt")
    return names


def threshold(runs: list[Run], published: list[Row]) -> "Figure":
    """The stop threshold over the rounds of all samples: moving mean and deviation of 64 rounds
    (Self-SD Figure 5).
    """
    figure, axes = new_figure(1, 1, (7.4, 3.8))
    names, styles = labels(runs), line_styles([run.method for run in runs])
    for run, name, style in zip(runs, names, styles, strict=True):
        values = [v for s in run.sound for v in s.trace.get("threshold", [])]
        if not values:
            raise SkipbenchError(
                f"{run.folder} has no threshold in its trace; draw a method with a stop rule"
            )
        windows = [values[max(0, i - WINDOW + 1) : i + 1] for i in range(len(values))]
        x, mean = range(1, len(values) + 1), [statistics.fmean(w) for w in windows]
        spread = [statistics.pstdev(w) for w in windows]
        color = style["color"]
        axes[0, 0].plot(x, mean, color=color, linewidth=1.2, label=f"{name}: threshold")
        low, high = ([m + sign * d for m, d in zip(mean, spread, strict=True)] for sign in (-1, 1))
        axes[0, 0].fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
        if len(runs) > 1:  # the thresholds are what is compared
            continue
        rates = _running([(r.steps, r.accepted) for s in run.sound for r in s.method.rounds])
        here = {"color": color, "linestyle": ":", "linewidth": 1.0}
        axes[0, 0].plot(
            range(1, len(rates) + 1), rates, label=f"{name}: acceptance rate so far", **here
        )
    axes[0, 0].set(
        xlabel="round", ylabel="threshold" if len(runs) > 1 else "threshold; acceptance rate"
    )
    legend(figure)
    return figure


def _running(rounds: list[tuple[int, int]]) -> list[float]:
    steps, accepted, found = 0, 0, []
    for s, a in rounds:
        steps, accepted = steps + s, accepted + a
        found.append(accepted / steps if steps else float("nan"))
    return found
