"""Quantities over time: the course of a run over its samples, the threshold over its rounds, and where the time goes."""

from itertools import groupby
from typing import TYPE_CHECKING

from skipbench.errors import SkipbenchError
from skipbench.report.figures.runs import Run, acceptances, speedups
from skipbench.report.figures.style import GREEN, GREY, PHASES, method_style, new_figure
from skipbench.report.published import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def course(runs: list[Run], published: list[Row]) -> "Figure":
    """Acceptance, matchness where the method has it, and speedup over samples (SWIFT Figures 6 and 7).

    The tasks of a stream are shaded bands. Published values are dashed lines.
    """
    matched = {id(run): _matchness(run) for run in runs}
    columns = ["alpha", *(["matchness"] if any(matched.values()) else []), "speedup"]
    figure, axes = new_figure(len(columns), 1, (6.4, 1.2 + 1.9 * len(columns)))
    for axis, column in zip(axes[:, 0], columns, strict=True):
        for run in runs:
            x = list(range(1, len(run["samples"]) + 1))
            y = {"alpha": acceptances(run), "speedup": speedups(run)}.get(column)
            if y is None:
                x, y = [i for i, _ in matched[id(run)]], [v for _, v in matched[id(run)]]
            if y:
                axis.plot(x, y, label=run["method"], markersize=3, linewidth=1.2, **method_style(run["method"]))
        _reference_lines(axis, published, column)
        axis.set_ylabel({"alpha": "acceptance rate", "matchness": "best matchness", "speedup": "speedup (x)"}[column])
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axis in axes[:, 0]:
        _bands(axis, runs[0])
    axes[-1, 0].set_xlabel("sample")
    axes[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    return figure


def _matchness(run: Run) -> list[tuple[int, float]]:
    """`(sample, best matchness)` after each sample in which a trial was made."""
    found = []
    for number, sample in enumerate(run["samples"], 1):
        values = [v for v in sample.trace.get("best", []) if isinstance(v, int | float)]
        if values:
            found.append((number, float(values[-1])))
    return found


def _reference_lines(axis: "Axes", published: list[Row], column: str) -> None:
    for row in published:
        if row["column"] == column and row["value"] is not None:
            named = ", ".join(str(row[k]) for k in ("method", "phase", "statistic") if k in row)
            color = method_style(str(row.get("method")))["color"]
            label = f"paper: {named} {row['value']:g}"
            axis.axhline(row["value"], color=color, linestyle="--", linewidth=1.0, alpha=0.7, label=label)


def _bands(axis: "Axes", run: Run) -> None:
    tasks = [s.groups.get("task") or s.groups.get("dataset") for s in run["samples"]]
    start = 0.5
    for number, (task, part) in enumerate(groupby(tasks)):
        end = start + len(list(part))
        if task is not None:
            axis.axvspan(start, end, color=GREY, alpha=0.06 + 0.12 * (number % 2), linewidth=0)
            axis.text(start, 1.0, f" {task}", transform=axis.get_xaxis_transform(), fontsize=7, va="bottom")
        start = end


def breakdown(runs: list[Run], published: list[Row]) -> "Figure":
    """Share of each phase in the method's time, one bar a run (SWIFT Figure 6b, CLaSp Figure 3c, Self-SD Table 5)."""
    figure, axes = new_figure(1, 1, (6.4, 1.6 + 0.4 * len(runs)))
    axis = axes[0, 0]
    labels = [f"{run['method']}, {run['dataset']}" for run in runs]
    left = [0.0] * len(runs)
    totals = [sum(run["metrics"]["seconds"].values()) for run in runs]
    for phase, color in PHASES.items():
        shares = [100 * run["metrics"]["seconds"][phase] / t for run, t in zip(runs, totals, strict=True)]
        axis.barh(range(len(runs)), shares, left=left, color=color, label=phase, height=0.6)
        for place, (share, at) in enumerate(zip(shares, left, strict=True)):
            if share >= 4:
                axis.text(at + share / 2, place, f"{share:.0f}%", ha="center", va="center", fontsize=7, color="white")
        left = [a + b for a, b in zip(left, shares, strict=True)]
    for row in published:
        if row["column"] == "share" and row["value"] is not None:
            text = f"paper: {row.get('phase', '')} {100 * row['value']:.1f}%"
            axis.plot([], [], linestyle="none", marker="|", color="black", label=text)
    axis.set_yticks(range(len(runs)), labels)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the method's time (%)")
    axis.legend(fontsize=7, ncols=1, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def threshold(runs: list[Run], published: list[Row]) -> "Figure":
    """The stop threshold over the rounds of all samples, one line a run (Self-SD Figures 4 and 5)."""
    figure, axes = new_figure()
    for run in runs:
        values = [v for s in run["samples"] for v in s.trace.get("threshold", [])]
        if not values:
            raise SkipbenchError(f"{run['folder']} has no threshold in its trace; draw a method with a stop rule")
        color = method_style(run["method"])["color"]
        axes[0, 0].plot(
            range(1, len(values) + 1), values, color=color, linewidth=1, label=f"{run['method']}, threshold"
        )
        rates = _running([(r.steps, r.accepted) for s in run["samples"] for r in s.method.rounds])
        axes[0, 0].plot(range(1, len(rates) + 1), rates, color=GREEN, linewidth=0.8, label="acceptance rate so far")
    axes[0, 0].set(xlabel="round", ylabel="threshold; acceptance rate (1)")
    axes[0, 0].legend(fontsize=7)
    return figure


def _running(rounds: list[tuple[int, int]]) -> list[float]:
    steps, accepted, found = 0, 0, []
    for s, a in rounds:
        steps, accepted = steps + s, accepted + a
        found.append(accepted / steps if steps else float("nan"))
    return found
