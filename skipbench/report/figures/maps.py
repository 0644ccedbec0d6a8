"""Skipped sub-layers: maps, similarity over time, and numbers against context length."""

import textwrap

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import rounds_with_sets
from skipbench.report.figures import style
from skipbench.report.figures.runs import labels, layers_of, optimised_sets, skip_sets
from skipbench.report.published import Printed
from skipbench.runs.run import Run


def frequencies(run: Run, layers: int) -> NDArray[np.float64]:
    """Share of the run's rounds that skip attention and MLP of each layer: [2, layers]."""
    drafts = [skip for s in run.sound for _, skip, _ in rounds_with_sets(s, layers)]
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
        axis.set_yticks([0, 1], ["attention", "MLP"])
        axis.set_xticks(range(0, layers, 1 if layers <= 24 else 4))
        axis.set_xticks([i + 0.5 for i in range(layers - 1)], minor=True)
        axis.set_yticks([0.5], minor=True)
        axis.grid(which="major", visible=False)
        axis.grid(which="minor", color="white", linewidth=1.5)
        axis.tick_params(which="minor", length=0)
        axis.set_title(textwrap.fill(name, 60), fontsize=8, loc="left")
    axes[-1, 0].set_xlabel("layer")
    figure.colorbar(image, ax=axes[:, 0].tolist(), label="share of rounds")
    return figure


def jaccard_by_distance(run: Run) -> dict[int, list[float]]:
    """Jaccard similarity of sets 1 to 10 optimisations apart within a sample."""
    found: dict[int, list[float]] = {}
    for sets in optimised_sets(run, layers_of(run)):
        for i, one in enumerate(sets):
            for distance, other in enumerate(sets[i + 1 : i + 11], 1):
                union = len(one | other)
                found.setdefault(distance, []).append(len(one & other) / union if union else 1.0)
    return dict(sorted(found.items()))


def jaccard(runs: list[Run], published: list[Printed]) -> Figure:
    """Mean similarity of skip sets over their distance in optimisations (CLaSp Figure 3a)."""
    figure, axis = style.one_axis()
    for run, name, look in style.lines(runs):
        if not (found := jaccard_by_distance(run)):
            raise SkipbenchError(
                f"{run.folder}: no sample has two skip sets; run longer samples or a shorter "
                "interval, such as method.interval=2"
            )
        means = [float(np.mean(values)) for values in found.values()]
        axis.plot(list(found), means, label=name, **look._asdict())
    axis.set(xlabel="distance (optimisations of the set)", ylabel="Jaccard similarity")
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
        for s in run.sound:
            for at, skipped in skip_sets(s, layers):
                context = s.prompt_tokens + sum(r.emitted for r in s.method.rounds[:at])
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
