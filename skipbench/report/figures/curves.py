"""Figures with a form of their own: the model of draft length, latency against speedup, flexible
optimisation, growth by task.
"""

import math
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from skipbench.metrics.formulas import expected_tokens
from skipbench.report.figures import style
from skipbench.report.figures.runs import by_group, decoded_share, speedups
from skipbench.report.figures.sweeps import setting
from skipbench.report.published import Printed
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COST = 0.5
"""Cost of a draft step in forwards of the target: the paper's figure assumes half of one."""
STEPS = "method.stop.max_steps"
RATIO = "method.ratio"


def model_speedup(alpha: float, steps: int, cost: float = COST) -> float:
    """Expected speedup of `steps` draft tokens per round, each accepted with probability `alpha`
    where those before it are.

    A round emits `(1 - alpha^(K + 1)) / (1 - alpha)` tokens and costs `K cost + 1` forwards of the
    target.
    """
    return expected_tokens(alpha, steps) / (steps * cost + 1)


def draft_length(runs: list[Run], published: list[Printed]) -> "Figure":
    """Model of speedup over acceptance for each K, and the runs as points on it (Self-SD Figure
    2).
    """
    figure, here = style.one_axis(7.4, 4.2)
    lengths = sorted({int(setting(run, STEPS)) for run in runs})
    grid = [i / 100 for i in range(101)]
    colors = style.tints(style.color_of("self-sd"), len(lengths))
    for steps, color in zip(lengths, colors, strict=True):
        model = [model_speedup(a, steps) for a in grid]
        here.plot(grid, model, color=color, linewidth=1.3, label=f"K = {steps}, model")
        for run in runs:
            if setting(run, STEPS) == steps and (y := run.speedup) is not None:
                x = decoded_share(run)
                here.plot([x], [y], "o", color=color, markeredgecolor="black", zorder=3)
                style.note(here, f"{steps}", (x, y), (5, 3))
                style.whisker(here, x, run.measured, color)
    for n in published:
        if n.column == "alpha" and n.value is not None:
            text = f"below {n.value:g}, K = {n.named('max_steps')[0]} is best"
            style.published_line(here, n.value, text, style=":", upright=True)
    here.plot([], [], "o", color="white", markeredgecolor="black", label="measured, with its K")
    style.no_gain(here)
    here.set(xlabel="acceptance rate of a draft token", ylabel="speedup (x)")
    here.set(xlim=(0, 1.01), ylim=(0, None))
    text = "curves: the model, a draft step costs half a forward of the target"
    here.set_title(text, fontsize=8, loc="left")
    style.legend(figure)
    return figure


def latency(runs: list[Run], published: list[Printed]) -> "Figure":
    """Speedup against the seconds that finding the skip set took, before decoding or in it (SWIFT
    Figure 11).
    """
    figure, here = style.one_axis(7.0)
    points: dict[str, list[tuple[float, Run]]] = {}
    for run in runs:
        seconds = run.search.seconds if run.search else run.measured.seconds.adapt or 0.0
        points.setdefault(run.method, []).append((seconds, run))
    for method, found in points.items():
        found.sort(key=lambda point: point[0])
        look, y = style.method_style(method), [run.speedup for _, run in found]
        here.plot([seconds for seconds, _ in found], y, label=method, **look)
        for seconds, run in found:
            style.whisker(here, seconds, run.measured, style.color_of(method))
            if run.search and run.speedup is not None:
                style.note(here, f"{run.search.sets} sets", (seconds, run.speedup), (4, -9))
    _printed_latencies(here, published)
    here.set_xscale("log")
    style.no_gain(here)
    here.set(xlabel="seconds to find the skip set", ylabel="speedup (x)")
    style.legend(figure)
    return figure


def _printed_latencies(here: "Axes", published: list[Printed]) -> None:
    """A star where the text prints both numbers of a point; a line where it prints the latency
    alone.
    """
    gains = {
        (n.method, *n.named("search_steps")): n.value for n in published if n.column == "speedup"
    }
    for n in (n for n in published if n.column == "search_s"):
        sets, color = n.named("search_steps"), style.color_of(n.method)
        named = n.method + (f", {sets[0]} sets" if sets else "")
        if n.value is None:
            continue
        if gain := gains.get((n.method, *sets)):
            label = f"paper: {named}, {gain:g}x at {n.value:g} s"
            shape: dict[str, Any] = {"linestyle": "none", "marker": "*", "markersize": 10}
            here.plot([n.value], [gain], color=color, label=label, **shape)
        else:
            style.published_line(here, n.value, f"{named}, {n.value:g} s", color, ":", upright=True)


def flexible(runs: list[Run], published: list[Printed]) -> "Figure":
    """SWIFT Figure 8. (a) Overall speedup so far, for each S and for each beta; (b) speedup over
    skip ratio by model.
    """
    figure, axes = style.new_figure(1, 3, (11.0, 3.8))
    for axis in axes[0, 1:]:
        axis.sharey(axes[0, 0])
    for here, key, name in ((axes[0, 0], "method.steps", "S"), (axes[0, 1], "method.beta", "beta")):
        members = sorted((r for r in runs if key in r.axes), key=lambda r: setting(r, key))
        for run, color in zip(members, style.tints(style.BLUE, len(members)), strict=True):
            values, look = so_far(run), {"color": color, "marker": "o"}
            label = f"{name} = {setting(run, key)}"
            here.plot(range(1, len(values) + 1), values, markersize=3, label=label, **look)
        here.set(xlabel="sample", ylabel="speedup so far (x)", title=f"(a) {name}")
        here.xaxis.get_major_locator().set_params(integer=True)
    sized: dict[str, list[tuple[float, float]]] = {}
    for run in (run for run in runs if RATIO in run.axes and run.speedup is not None):
        sized.setdefault(run.model, []).append((float(setting(run, RATIO)), run.speedup or 0.0))
    here = axes[0, 2]
    for (name, points), color, marker in zip(
        sized.items(), style.tints(style.BLUE, len(sized)), "os^Dv<>"[: len(sized)], strict=True
    ):
        points.sort(key=lambda point: point[0])
        x, y = zip(*points, strict=True)
        here.plot(x, y, color=color, marker=marker, markersize=4, label=name)
        best = max(points, key=lambda point: point[1])
        ring = {"marker": "o", "markersize": 11, "fillstyle": "none", "linestyle": "none"}
        here.plot(*best, color=color, label="best ratio", **ring)
    here.set(xlabel="share of sub-layers skipped", ylabel="speedup (x)", title="(b) scaling")
    for here in axes[0]:
        style.no_gain(here)
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
        means.append(geometric_mean(ratios) if ratios else math.nan)
    return means


def by_task(runs: list[Run], published: list[Printed]) -> "Figure":
    """Speedup over models from small to large, a line per task, the printed ones dashed (CLaSp
    Figure 5).

    A run over all of a benchmark is taken apart by the task of each sample; a cell may also stand
    for one task.
    """
    points: dict[str, dict[str, float]] = {}
    for run in runs:
        subtask = run.keys.get("subtask")
        parts = by_group(run, "task") if subtask is None else {str(subtask): speedups(run)}
        for task, values in (parts or {run.dataset: speedups(run)}).items():
            known = (v for v in values if not math.isnan(v))
            points.setdefault(task, {})[run.model] = geometric_mean(known)
    printed: dict[str, dict[str, float]] = {}
    for n in published:
        if n.column == "speedup" and n.value is not None:
            task, model = n.named("subtask", "model")
            printed.setdefault(task, {})[model] = n.value
    models = [*(run.model for run in runs), *(m for found in printed.values() for m in found)]
    models = list(dict.fromkeys(models))
    figure, here = style.one_axis(8.0, 4.2)
    for task, color, marker in zip(
        dict.fromkeys([*printed, *points]), style.TASKS, "os^Dv<>P", strict=False
    ):
        for found, source, look in (
            (points.get(task), "measured", {"marker": marker, "linestyle": "-"}),
            (printed.get(task), "paper", {"marker": "*", "linestyle": "--", "markersize": 9}),
        ):
            if found:
                x, label = [models.index(model) for model in found], f"{task}, {source}"
                here.plot(x, list(found.values()), color=color, label=label, **look)
    for place, model in enumerate(models):
        values = sorted(found[model] for found in printed.values() if model in found)
        if values:
            last = model == models[-1]  # lines rise: there is space below, but not at the end
            text, value = ", ".join(f"{v:g}" for v in values), values[-1 if last else 0]
            style.note(here, text, (place, value), (0, 8 if last else -16), ha="center")
    here.set_xticks(range(len(models)), models, rotation=20)
    here.set_xlim(-0.5, len(models) - 0.5)
    here.margins(y=0.15)
    here.set(xlabel="model", ylabel="speedup (x)")
    style.legend(figure)
    return figure
