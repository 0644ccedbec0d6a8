"""Figures with a form of their own, one function each."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import alpha, alpha_cond, tokens_per_time
from skipbench.metrics.formulas import expected_tokens
from skipbench.metrics.prices import Latencies, Prices
from skipbench.report.definitions import LABELS
from skipbench.report.figures import style
from skipbench.report.figures.runs import speedups
from skipbench.report.figures.sweeps import setting, value, with_values
from skipbench.report.published import Printed
from skipbench.runs.record import Arm
from skipbench.runs.run import Run

COST = 0.5  # cost of a draft step in forwards of the target, as the paper's figure assumes
STEPS, RATIO = "method.stop.max_steps", "method.ratio"
MARKERS = "os^Dv<>P"
FEW = 10  # pairs up to which r is hardly more than chance: at 10, its 95 % interval at 0 is ±0.6
Numbers = Sequence[float | None]


def draft_length(runs: list[Run], published: list[Printed]) -> Figure:
    """Modelled speedup over acceptance for each K, with the runs as points (Self-SD Figure 2)."""
    figure, here = style.one_axis(7.4, 4.2)
    lengths = sorted({int(setting(run, STEPS)) for run in runs})
    grid = [i / 100 for i in range(101)]
    colors = style.tints(style.method_style("self-sd").color, len(lengths))
    for steps, color in zip(lengths, colors, strict=True):
        model = [expected_tokens(a, steps) / (steps * COST + 1) for a in grid]
        here.plot(grid, model, color=color, linewidth=1.3, label=f"K = {steps}, model")
        for run in runs:
            x = alpha_cond([r for arm in run.arms for r in arm.rounds])
            if setting(run, STEPS) == steps and x is not None and (y := run.speedup) is not None:
                here.plot([x], [y], "o", color=color, markeredgecolor="black", zorder=3)
                style.note(here, f"{steps}", (x, y), (5, 3))
                style.whisker(here, x, run.measured, color)
    for n, rate in with_values(published, "alpha"):
        text = f"below {rate:g}, K = {n.named('max_steps')[0]} is best"
        style.published_line(here, rate, text, True, linestyle=":")
    here.plot([], [], "o", color="white", markeredgecolor="black", label="measured, with its K")
    style.no_gain(here)
    here.set(xlabel="acceptance rate of a draft token", ylabel="speedup (x)")
    here.set(xlim=(0, 1.01), ylim=(0, None))
    text = "curves: the model, a draft step costs half a forward of the target"
    here.set_title(text, fontsize=8, loc="left")
    return figure


def latency(runs: list[Run], published: list[Printed]) -> Figure:
    """Speedup against the seconds that finding the skip set took (SWIFT Figure 11)."""
    figure, here = style.one_axis(7.0)
    points = [(o.seconds if (o := run.measured.optimisation) else 0.0, run) for run in runs]
    points.sort(key=lambda point: point[0])
    for method in dict.fromkeys(run.method for run in runs):
        x, y = zip(*((s, run.speedup) for s, run in points if run.method == method), strict=True)
        here.plot(x, y, label=method, **style.method_style(method)._asdict())
    for seconds, run in points:
        style.whisker(here, seconds, run.measured, style.method_style(run.method).color)
        if "search.iterations" in run.axes and run.speedup is not None:
            text = f"{run.axes['search.iterations']} sets"
            style.note(here, text, (seconds, run.speedup), (4, -9))
    # a star if the text prints both numbers of a point; a line if it prints the latency alone
    printed = with_values(published, "speedup")
    gains = {(n.method, *n.named("search_steps")): gain for n, gain in printed}
    for n, seconds in with_values(published, "search_s"):
        sets, color = n.named("search_steps"), style.method_style(n.method).color
        named = n.method + (f", {sets[0]} sets" if sets else "")
        if gain := gains.get((n.method, *sets)):
            label = f"paper: {named}, {gain:g}x at {seconds:g} s"
            here.plot([seconds], [gain], "*", markersize=10, color=color, label=label)
        else:
            text = f"{named}, {seconds:g} s"
            style.published_line(here, seconds, text, True, color=color, linestyle=":")
    here.set_xscale("log")
    style.no_gain(here)
    here.set(xlabel="seconds to find the skip set", ylabel="speedup (x)")
    return figure


def flexible(runs: list[Run], published: list[Printed]) -> Figure:
    """SWIFT Figure 8: (a) speedup so far for each S and each beta; (b) speedup over skip ratio."""
    figure, axes = style.new_figure(1, 3, (11.0, 3.8))
    for axis in axes[0, 1:]:
        axis.sharey(axes[0, 0])
    for here, key, name in ((axes[0, 0], "method.steps", "S"), (axes[0, 1], "method.beta", "beta")):
        members = sorted((r for r in runs if key in r.axes), key=lambda r: setting(r, key))
        for run, color in zip(members, style.tints(style.BLUE, len(members)), strict=True):
            so_far = np.exp(np.log(pd.Series(speedups(run))).expanding().mean())
            look = {"label": f"{name} = {setting(run, key)}", "color": color, "marker": "o"}
            here.plot(so_far.index + 1, so_far, markersize=3, **look)
        here.set(xlabel="sample", ylabel="speedup so far (x)", title=f"(a) {name}")
        style.whole_numbers(here.xaxis)
    here, sized = axes[0, 2], [r for r in runs if RATIO in r.axes and r.speedup is not None]
    models = list(dict.fromkeys(run.model for run in sized))
    colors = style.tints(style.BLUE, len(models))
    for name, color, marker in zip(models, colors, MARKERS, strict=False):
        points = [(float(setting(run, RATIO)), run.speedup) for run in sized if run.model == name]
        points.sort(key=lambda point: point[0])
        x, y = zip(*points, strict=True)
        here.plot(x, y, color=color, marker=marker, markersize=4, label=name)
        ring = {"marker": "o", "markersize": 11, "fillstyle": "none", "linestyle": "none"}
        here.plot(x[y.index(max(y))], max(y), color=color, label="best ratio", **ring)
    here.set(xlabel="share of sub-layers skipped", ylabel="speedup (x)", title="(b) scaling")
    for here in axes[0]:
        style.no_gain(here)
        here.title.set_fontsize(9)
        here.tick_params(labelleft=True)
        if here.get_legend_handles_labels()[1]:
            here.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return figure


def by_task(runs: list[Run], published: list[Printed]) -> Figure:
    """Speedup over models from small to large, a line per task, printed dashed (CLaSp Figure 5)."""
    measured, printed = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    for run in runs:
        tasks = [run.keys.get("subtask") or s.groups.get("task") for s in run.sound]
        logs = pd.Series(np.log(speedups(run)), tasks if any(tasks) else [run.dataset] * len(tasks))
        for name, mean in logs.groupby(level=0, sort=False).mean().items():
            measured[str(name), run.model] = math.exp(mean)
    for n, speedup in with_values(published, "speedup"):
        task, model = n.named("subtask", "model")
        printed[task, model] = speedup
    models = list(dict.fromkeys(model for points in (measured, printed) for _, model in points))
    figure, here = style.one_axis(8.0, 4.2)
    shown = dict.fromkeys(task for points in (printed, measured) for task, _ in points)
    for task, color, marker in zip(shown, style.TASKS, MARKERS, strict=False):
        for points, source, look in (
            (measured, "measured", {"marker": marker, "linestyle": "-"}),
            (printed, "paper", {"marker": "*", "linestyle": "--", "markersize": 9}),
        ):
            if found := [(models.index(m), y) for (of, m), y in points.items() if of == task]:
                here.plot(*zip(*found, strict=True), color=color, label=f"{task}, {source}", **look)
    for place, model in enumerate(models):
        if values := sorted(y for (_, of), y in printed.items() if of == model):
            last = model == models[-1]  # lines rise: there is space below, but not at the end
            text, height = ", ".join(f"{v:g}" for v in values), values[-1 if last else 0]
            style.note(here, text, (place, height), (0, 8 if last else -16), ha="center")
    here.set_xticks(range(len(models)), models, rotation=20)
    here.margins(y=0.15)
    here.set(xlim=(-0.5, len(models) - 0.5), xlabel="model", ylabel="speedup (x)")
    return figure


def _points(here: Axes, methods: Sequence[str], x: Numbers, y: Numbers) -> pd.DataFrame:
    """Draws a point wherever both numbers are known, and returns them as `x`, `y`, `method`."""
    points = pd.DataFrame({"x": x, "y": y, "method": methods}).dropna()
    for one, other, method in points.itertuples(index=False):
        look = style.method_style(method)
        here.scatter([one], [other], 24, look.color, marker=look.marker, label=method, zorder=3)
    return points


def correlation(runs: list[Run], published: list[Printed]) -> Figure:
    """TPT and acceptance rate of each sample against its throughput, Pearson's r (KnapSpec 2)."""
    figure, axes = style.new_figure(1, 2, (8.4, 3.8))
    each = [(run, arm) for run in runs for arm in run.arms]
    lengths = [turn.prompt_tokens for run in runs for turn in run.sound]
    methods = [run.method for run, _ in each]
    rates = [1 / arm.s_per_token if arm.s_per_token else None for _, arm in each]
    for here, column in zip(axes[0], ("TPT", "alpha"), strict=True):
        of = _sample_tpt if column == "TPT" else lambda _, arm: alpha(arm.rounds)
        points = _points(here, methods, [of(*one) for one in each], rates)
        text = f"r needs 3 samples that differ, here are {len(points)}"
        if len(points) > 2 and points.x.nunique() > 1 and points.y.nunique() > 1:
            r = points.x.corr(points.y)
            few = ", too few to tell" if len(points) <= FEW else ""
            counts = f"{len(points)} samples of {len(runs)} runs"
            text = f"r = {r:.2f}, R² = {r * r:.2f} ({counts}{few})"
        for n, printed in with_values(published, "correlation"):
            text += f"\npaper: r = {printed:g}" if n.named("part") == [column] else ""
        here.set_title(text, fontsize=8, loc="left")
        here.set(xlabel=LABELS[column], ylabel=LABELS["tokens_per_s"])
    ends = f"{min(lengths):,} to {max(lengths):,}"
    figure.suptitle(f"a point per sample; prompts of {ends} tokens", fontsize=8)
    return figure


def _sample_tpt(run: Run, arm: Arm) -> float | None:
    """TPT of one sample, with the latencies that the run profiled; None without them."""
    if (of := run.measured.profiled) is None:
        return None
    model = Latencies(of.attention_s, 0.0, of.mlp_s, of.head_s, of.layers)
    pass_s = partial(Prices(model=model).pass_s, 1, 0.0)
    return tokens_per_time([arm], arm.rounds, of.layers, pass_s)


def skipped(runs: list[Run], published: list[Printed]) -> Figure:
    """Speedup over the share of sub-layers skipped, the best of each joined (Self-SD Figure 4)."""
    figure, here = style.one_axis(6.8)
    ratios = [value(run, "ratio", run) for run in runs]
    points = _points(here, [run.method for run in runs], ratios, [run.speedup for run in runs])
    best = points.y.groupby(points.x.round(2)).max()
    here.plot(best.index, best, "--", color=style.GREY, linewidth=1, label="best of each")
    style.no_gain(here)
    for _, printed in with_values(published, "skipped_layers"):
        # The paper counts attention and MLP apart: its 40 layers are 80.
        text = f"falls beyond {printed:g} of 80"
        style.published_line(here, printed / 80, text, True, linestyle=":")
    here.set(xlabel="share of sub-layers skipped", ylabel="speedup (x)")
    return figure


class BruteForce(msgspec.Struct):
    """A line that scripts/brute_force.py prints: mean cosines to the full model's last states."""

    programme: Annotated[str, msgspec.Meta(max_length=80)]
    model: Annotated[str, msgspec.Meta(max_length=200)]
    cases: int
    best: float  # of the best of all sets, as brute force finds it
    found: float  # of the programme's set
    random: float  # of all sets on average


def brute_force(lines: list[Any]) -> tuple[Figure, str]:
    """Similarity to the full model of the best, the programme's and a random set (CLaSp Figure 3b).
    Raises SkipbenchError without lines, or for one that is no `BruteForce`.
    """
    try:
        found = msgspec.convert(lines, Annotated[list[BruteForce], msgspec.Meta(min_length=1)])
    except msgspec.ValidationError as error:
        raise SkipbenchError(
            f"wanted lines with {', '.join(BruteForce.__struct_fields__)}; make them with python "
            "scripts/brute_force.py > FILE"
        ) from error
    figure, axis = style.one_axis(7.4, 1.6 + 0.6 * len(found))
    for offset, label, color, cosines in (
        (-0.27, "brute force", style.BLUE, [line.best for line in found]),
        (0.0, "programme", style.GREEN, [line.found for line in found]),
        (0.27, "random set", style.GREY, [line.random for line in found]),
    ):
        places = [i + offset for i in range(len(found))]
        bars = axis.barh(places, cosines, height=0.25, color=color, label=label)
        axis.bar_label(bars, fmt="%.4f", fontsize=7, padding=2)
    axis.set_yticks(range(len(found)), [f"{line.programme} (n={line.cases})" for line in found])
    axis.set_xlabel("cosine similarity to the full model's last hidden states")
    axis.invert_yaxis()
    style.legend(figure)
    return figure, "; ".join(dict.fromkeys(line.model for line in found))
