"""Skipped sub-layers: maps, similarity over time, numbers against context length, tried sets."""

import itertools
import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import rounds_with_sets
from skipbench.report.figures import style
from skipbench.report.figures.runs import labels, layers_of, optimised_sets, skip_sets
from skipbench.report.published import Printed
from skipbench.runs.run import Run

BINS = 64  # of the distances between skip sets; up to as many tokens, a bin per token
ROWS = 16  # sets of a map at most
KEPT = "#dddddd"


def frequencies(run: Run, layers: int) -> NDArray[np.float64]:
    """Share of the run's rounds that skip attention and MLP of each layer: [2, layers]."""
    drafts = [skip for arm in run.arms for _, skip, _ in rounds_with_sets(arm, layers)]
    if not drafts:
        raise SkipbenchError(f"{run.folder} has no rounds; nothing was drafted")
    skipped = np.array([sublayer for skip in drafts if skip for sublayer in skip.skipped], int)
    return np.bincount(skipped, minlength=2 * layers).reshape(layers, 2).T / len(drafts)


def skip_map(runs: list[Run], published: list[Printed]) -> Figure:
    """Attention and MLP of every layer, dark where skipped (SWIFT 9 to 11, Self-SD 6 to 10)."""
    sizes = [layers_of(run) for run in runs]
    size = max(5.0, 0.22 * max(sizes) + 2), 1.0 + 1.1 * len(runs)
    figure, axes = style.new_figure(len(runs), 1, size)
    for axis, run, layers, name in zip(axes[:, 0], runs, sizes, labels(runs), strict=True):
        image = axis.imshow(frequencies(run, layers), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        style.squares(axis, layers, ["attention", "MLP"], 1.5)
        axis.set_title(textwrap.fill(name, 60), fontsize=8, loc="left")
    axes[-1, 0].set_xlabel("layer")
    figure.colorbar(image, ax=axes[:, 0].tolist(), label="share of rounds")
    return figure


def jaccard_by_distance(run: Run) -> pd.Series:
    """Mean Jaccard similarity of two sets of a sample by tokens between them, in `BINS` bins."""
    pairs = [np.empty((0, 2))]
    for sets in optimised_sets(run, layers := layers_of(run)):
        at, members = np.array([at for at, _ in sets]), np.zeros((len(sets), 2 * layers))
        for row, (_, skipped) in zip(members, sets, strict=True):
            row[list(skipped)] = 1
        both, sizes = members @ members.T, members.sum(1)
        union = sizes[:, None] + sizes - both
        similarity = np.where(union, both / np.maximum(union, 1), 1)
        one, other = np.triu_indices(len(sets), 1)
        pairs.append(np.stack((at[other] - at[one], similarity[one, other]), 1))
    frame = pd.DataFrame(np.concatenate(pairs), columns=["distance", "similarity"])
    width = max(1, math.ceil(frame.distance.max() / BINS)) if len(frame) else 1
    means = frame.groupby((frame.distance - 1) // width).mean()
    return means.set_index("distance").similarity


def jaccard(runs: list[Run], published: list[Printed]) -> Figure:
    """Mean similarity of skip sets over their distance in tokens (CLaSp Figure 3a)."""
    figure, axis = style.one_axis()
    for run, name, look in style.lines(runs):
        if (found := jaccard_by_distance(run)).empty:
            raise SkipbenchError(
                f"{run.folder}: no sample has two skip sets; run longer samples or a shorter "
                "interval, such as method.interval=2"
            )
        axis.plot(found.index, found, label=name, markersize=3, **look._asdict())
    axis.set(xlabel="distance (tokens)", ylabel="Jaccard similarity")
    axis.set_ylim(0, 1.02)
    style.whole_numbers(axis.xaxis)
    axis.legend(fontsize=7)
    return figure


def against_context(runs: list[Run], published: list[Printed]) -> Figure:
    """Skipped sub-layers against context length, a point per set, a panel per run (KnapSpec 3)."""
    figure, axes = style.new_figure(1, len(runs), (1.6 + 3.2 * len(runs), 3.4))
    highest = 1
    for here, run, name in zip(axes[0], runs, labels(runs), strict=True):
        points, layers = [], layers_of(run)
        for turn, arm in zip(run.sound, run.arms, strict=True):
            for at, skipped in skip_sets(arm, layers):
                context = turn.prompt_tokens + sum(r.emitted for r in arm.rounds[:at])
                points.append((context, len(skipped.attention), len(skipped.mlp)))
        x, attention, mlp = zip(*points, strict=True)
        # squares are hollow, so that both show where they agree
        for y, color, face, marker, size, label in (
            (attention, style.BLUE, style.BLUE, "o", 12, "attention"),
            (mlp, style.ORANGE, "none", "s", 40, "MLP"),
        ):
            here.scatter(x, y, size, edgecolors=color, facecolors=face, marker=marker, label=label)
        here.set(xlabel="context length (tokens)", ylabel="skipped sub-layers")
        highest = max(highest, *attention, *mlp)
        here.set_title(name, fontsize=8, loc="left")
        style.whole_numbers(here.yaxis)
    for here in axes[0]:
        here.set_ylim(-0.05 * highest, 1.08 * highest)
    return figure


def sets_by_step(run: Run, layers: int) -> list[tuple[int, DraftPlan]]:
    """Each new set of a run of SWIFT with the number of optimisation steps before it. A step
    follows every round behind which there are more than `window` + 2 tokens.
    """
    window, before, found = run.setting("method.window"), 0, list[tuple[int, DraftPlan]]()
    if window is None or not any(arm.trace.get("step") for arm in run.arms):
        raise SkipbenchError(f"{run.method} tries no set while it decodes; draw a run of swift")
    for arm in run.arms:
        tokens = itertools.accumulate((r.emitted for r in arm.rounds), initial=1)
        waiting = sum(count <= window + 2 for count in [*tokens][1:])
        steps = len(arm.trace.get("step", []))
        for at, plan in skip_sets(arm, layers):
            if not found or plan != found[-1][1]:
                found.append((before + min(max(0, at - waiting), steps), plan))
        before += steps
    return found


def refined(runs: list[Run], published: list[Printed]) -> Figure:
    """Sub-layers that the best set skips, over the optimisation steps (SWIFT Figure 12): a line
    per set, of many `ROWS` spread evenly.
    """
    layers = layers_of(runs[0])
    sets = sets_by_step(runs[0], layers)
    places = np.unique(np.linspace(0, len(sets) - 1, min(ROWS, len(sets))).round().astype(int))
    shown = [sets[place] for place in places]
    size = max(6.0, 0.2 * layers + 2.6), 1.6 + 0.36 * len(shown)
    figure, axes = style.new_figure(2, 1, size)
    kinds = ("attention", style.RED), ("MLP", style.BLUE)
    for axis, (kind, color) in zip(axes[:, 0], kinds, strict=True):
        skipped = [plan.attention if kind == "attention" else plan.mlp for _, plan in shown]
        image = [[layer in of for layer in range(layers)] for of in skipped]
        axis.imshow(image, cmap=ListedColormap([KEPT, color]), vmin=0, vmax=1, aspect="auto")
        style.squares(axis, layers, [str(step) for step, _ in shown], 1, fontsize=7)
        axis.set_ylabel("optimisation steps")
        axis.set_title(kind, fontsize=8, loc="left")
    axes[-1, 0].set_xlabel("layer")
    names = ("skipped attention", style.RED), ("skipped MLP", style.BLUE), ("executed", KEPT)
    patches = [Patch(color=color, label=label) for label, color in names]
    style.beside(axes[0, 0], handles=patches)
    return figure
