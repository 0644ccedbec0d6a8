"""Figures with a form of their own: the model of draft length, latency against speedup, flexible
optimisation, growth by task.
"""

import math
import statistics
from typing import TYPE_CHECKING, Any

from skipbench.metrics.formulas import expected_tokens
from skipbench.report.figures.runs import by_group, decoded_share, speedups
from skipbench.report.figures.style import (
    BLUE,
    GREY,
    legend,
    method_style,
    new_figure,
    tints,
    whisker,
)
from skipbench.report.figures.sweeps import setting
from skipbench.report.published import Row
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COST = 0.5
"""Of a draft step, in forwards of the target: the paper's figure assumes a draft twice as fast."""


def model_speedup(alpha: float, steps: int, cost: float = COST) -> float:
    """Expected speedup of `steps` draft tokens per round, each accepted with probability `alpha`
    where those before it are.

    A round emits `(1 - alpha^(K + 1)) / (1 - alpha)` tokens and costs `K cost + 1` forwards of the
    target.
    """
    return expected_tokens(alpha, steps) / (steps * cost + 1)


def draft_length(runs: list[Run], published: list[Row]) -> "Figure":
    """Model of speedup over acceptance for each K, and the runs as points on it (Self-SD Figure
    2).
    """
    figure, axes = new_figure(1, 1, (7.4, 4.2))
    here = axes[0, 0]
    lengths = sorted({int(setting(run, "method.stop.max_steps")) for run in runs})
    grid = [i / 100 for i in range(101)]
    for steps, color in zip(
        lengths, tints(method_style("self-sd")["color"], len(lengths)), strict=True
    ):
        here.plot(
            grid,
            [model_speedup(a, steps) for a in grid],
            color=color,
            linewidth=1.3,
            label=f"K = {steps}, model",
        )
        for run in runs:
            if setting(run, "method.stop.max_steps") == steps:
                x, y = decoded_share(run), run.measured.speedup.paired
                here.plot(
                    [x], [y], "o", color=color, markeredgecolor="black", markersize=6, zorder=3
                )
                here.annotate(
                    f"{steps}", (x, y), xytext=(5, 3), textcoords="offset points", fontsize=7
                )
                whisker(here, x, run.measured, color)
    for row in published:
        if row["column"] == "alpha":
            label = f"paper: below {row['value']:g}, K = {row['max_steps']} is best"
            here.axvline(row["value"], color="black", linestyle=":", linewidth=1, label=label)
    here.plot([], [], "o", color="white", markeredgecolor="black", label="measured, with its K")
    here.axhline(1.0, color=GREY, linewidth=0.6)
    here.set(
        xlabel="acceptance rate of a draft token",
        ylabel="speedup (x)",
        xlim=(0, 1.01),
        ylim=(0, None),
    )
    here.set_title(
        "curves: the model, a draft step costs half a forward of the target", fontsize=8, loc="left"
    )
    legend(figure)
    return figure


def latency(runs: list[Run], published: list[Row]) -> "Figure":
    """Speedup against the seconds that finding the skip set took, before decoding or in it (SWIFT
    Figure 11).
    """
    figure, axes = new_figure(1, 1, (7.0, 3.8))
    here = axes[0, 0]
    points: dict[str, list[tuple[float, Run]]] = {}
    for run in runs:
        seconds = run.search.seconds if run.search else run.measured.seconds.adapt or 0.0
        points.setdefault(run.method, []).append((seconds, run))
    for method, found in points.items():
        found.sort(key=lambda point: point[0])
        x, y = [s for s, _ in found], [r.measured.speedup.paired for _, r in found]
        here.plot(x, y, label=method, **method_style(method))
        for seconds, run in found:
            whisker(here, seconds, run.measured, method_style(method)["color"])
            if run.search:
                at = (seconds, run.measured.speedup.paired)
                here.annotate(
                    f"{run.search.sets} sets",
                    at,
                    xytext=(4, -9),
                    textcoords="offset points",
                    fontsize=7,
                )
    _printed_latencies(here, published)
    here.set_xscale("log")
    here.axhline(1.0, color=GREY, linewidth=0.6)
    here.set(xlabel="seconds to find the skip set", ylabel="speedup (x)")
    legend(figure)
    return figure


def _printed_latencies(here: Any, published: list[Row]) -> None:
    """A star where the text prints both numbers of a point; a line where it prints the latency
    alone.
    """
    seconds = {
        (r["method"], r.get("search_steps")): r["value"]
        for r in published
        if r["column"] == "search_s"
    }
    gains = {
        (r["method"], r.get("search_steps")): r["value"]
        for r in published
        if r["column"] == "speedup"
    }
    for (method, sets), at in seconds.items():
        color, named = method_style(method)["color"], method + (f", {sets} sets" if sets else "")
        if (method, sets) in gains:
            gain = gains[method, sets]
            label = f"paper: {named}, {gain:g}x at {at:g} s"
            here.plot(
                [at], [gain], linestyle="none", marker="*", markersize=10, color=color, label=label
            )
        else:
            here.axvline(
                at, color=color, linestyle=":", linewidth=1, label=f"paper: {named}, {at:g} s"
            )


def flexible(runs: list[Run], published: list[Row]) -> "Figure":
    """SWIFT Figure 8. (a) Overall speedup so far, for each S and for each beta; (b) speedup over
    skip ratio by model.
    """
    figure, axes = new_figure(1, 3, (11.0, 3.8))
    for axis in axes[0, 1:]:
        axis.sharey(axes[0, 0])
    for here, key, name in ((axes[0, 0], "method.steps", "S"), (axes[0, 1], "method.beta", "beta")):
        members = sorted((r for r in runs if key in r.axes), key=lambda r: setting(r, key))
        for run, color in zip(members, tints(BLUE, len(members)), strict=True):
            values = so_far(run)
            label = f"{name} = {setting(run, key)}"
            here.plot(
                range(1, len(values) + 1),
                values,
                color=color,
                marker="o",
                markersize=3,
                label=label,
            )
        here.set(xlabel="sample", ylabel="speedup so far (x)", title=f"(a) {name}")
        here.xaxis.get_major_locator().set_params(integer=True)
    sized: dict[str, list[Run]] = {}
    for run in runs:
        if "method.ratio" in run.axes:
            sized.setdefault(run.model, []).append(run)
    here = axes[0, 2]
    for (name, members), color, marker in zip(
        sized.items(), tints(BLUE, len(sized)), "os^Dv<>"[: len(sized)], strict=True
    ):
        members.sort(key=lambda r: float(setting(r, "method.ratio")))
        points = [
            (float(setting(r, "method.ratio")), r.speedup) for r in members if r.speedup is not None
        ]
        best = max(points, key=lambda point: point[1])
        here.plot(*zip(*points, strict=True), color=color, marker=marker, markersize=4, label=name)
        here.plot(
            *best,
            color=color,
            marker="o",
            markersize=11,
            fillstyle="none",
            linestyle="none",
            label="best ratio",
        )
    here.set(xlabel="share of sub-layers skipped", ylabel="speedup (x)", title="(b) scaling")
    for here in axes[0]:
        here.axhline(1.0, color=GREY, linewidth=0.6)
        here.title.set_fontsize(9)
        here.tick_params(labelleft=True)
        if here.get_legend_handles_labels()[1]:
            here.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return figure


def so_far(run: Run) -> list[float]:
    """Speedup over the first 1, 2, ... samples; NaN before the first that decoded anything."""
    ratios: list[float] = []
    means = []
    for sample in run.sound:
        ratios += [] if sample.speedup is None else [sample.speedup]
        means.append(statistics.geometric_mean(ratios) if ratios else math.nan)
    return means


def by_task(runs: list[Run], published: list[Row]) -> "Figure":
    """Speedup over models from small to large, a line per task, the printed ones dashed (CLaSp
    Figure 5).

    A run over all of a benchmark is taken apart by the task of each sample; a cell may also stand
    for one task.
    """
    points: dict[str, dict[str, float]] = {}
    for run in runs:
        own = (
            {str(run.keys["subtask"]): speedups(run)}
            if "subtask" in run.keys
            else by_group(run, "task")
        )
        for task, values in (own or {run.dataset: speedups(run)}).items():
            points.setdefault(task, {})[run.model] = statistics.geometric_mean(
                v for v in values if v == v
            )
    printed: dict[str, dict[str, float]] = {}
    for row in published:
        if row["column"] == "speedup" and row["value"] is not None:
            printed.setdefault(str(row["subtask"]), {})[str(row["model"])] = row["value"]
    models = list(
        dict.fromkeys([*(r.model for r in runs), *(m for found in printed.values() for m in found)])
    )
    tasks = list(dict.fromkeys([*printed, *points]))
    figure, axes = new_figure(1, 1, (8.0, 4.2))
    here = axes[0, 0]
    for task, color, marker in zip(tasks, _TASKS, "os^Dv<>P", strict=False):
        found = points.get(task, {})
        if found:
            x = [models.index(m) for m in found]
            here.plot(
                x,
                list(found.values()),
                color=color,
                marker=marker,
                label=f"{task}, measured",
                linestyle="-",
            )
        if known := printed.get(task):
            x = [models.index(m) for m in known]
            here.plot(
                x,
                list(known.values()),
                color=color,
                marker="*",
                markersize=9,
                linestyle="--",
                label=f"{task}, paper",
            )
    for model in models:
        values = sorted(found[model] for found in printed.values() if model in found)
        if values:
            text = ", ".join(f"{v:g}" for v in values)
            last = model == models[-1]  # lines rise: below them there is room, but not at their end
            at = (models.index(model), values[-1 if last else 0])
            here.annotate(
                text,
                at,
                xytext=(0, 8 if last else -16),
                textcoords="offset points",
                fontsize=7,
                ha="center",
            )
    here.set_xticks(range(len(models)), models, rotation=20)
    here.set_xlim(-0.5, len(models) - 0.5)
    here.margins(y=0.15)
    here.set(xlabel="model", ylabel="speedup (x)")
    legend(figure)
    return figure


_TASKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800", "#777777")
