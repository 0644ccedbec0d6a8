"""Skipped sub-layers: maps of sets, frequencies, similarity over time, and numbers against context
length.
"""

from typing import TYPE_CHECKING

from skipbench.errors import SkipbenchError
from skipbench.report.figures.runs import labels, layers_of, optimised_sets, skip_sets
from skipbench.report.figures.style import BLUE, ORANGE, legend, line_styles, new_figure, one_axis
from skipbench.report.published import Printed
from skipbench.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def frequencies(run: Run, layers: int) -> list[list[float]]:
    """[2, layers]: how often attention and MLP of each layer were skipped, over the run's
    rounds.
    """
    counts, total = [[0.0] * layers, [0.0] * layers], 0
    changes = skip_sets(run, layers)
    for number, (position, at, skipped) in enumerate(changes):
        following = changes[number + 1] if number + 1 < len(changes) else (None, 0, skipped)
        end = following[1] if following[0] == position else len(run.sound[position].method.rounds)
        total += (weight := max(end - at, 0))
        for s in skipped.skipped:
            counts[s % 2][s // 2] += weight
    if not total:
        raise SkipbenchError(f"{run.folder} has no rounds; nothing was drafted")
    return [[c / total for c in row] for row in counts]


def skip_map(runs: list[Run], published: list[Printed]) -> "Figure":
    """Attention and MLP of every layer, dark where skipped (SWIFT 9 to 11, Self-SD 6 to 10;
    probabilities: KnapSpec 5).
    """
    sizes = [layers_of(run) for run in runs]
    figure, axes = new_figure(
        len(runs), 1, (max(5.0, 0.22 * max(sizes) + 2), 1.0 + 1.1 * len(runs))
    )
    for axis, run, layers, name in zip(axes[:, 0], runs, sizes, labels(runs), strict=True):
        image = axis.imshow(frequencies(run, layers), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axis.set_yticks([0, 1], ["attention", "MLP"])
        axis.set_xticks(range(0, layers, 1 if layers <= 24 else 4))
        axis.set_xticks([i + 0.5 for i in range(layers - 1)], minor=True)
        axis.set_yticks([0.5], minor=True)
        axis.grid(which="major", visible=False)
        axis.grid(which="minor", color="white", linewidth=1.5)
        axis.tick_params(which="minor", length=0)
        axis.set_title(name, fontsize=8, loc="left")
    axes[-1, 0].set_xlabel("layer")
    figure.colorbar(image, ax=axes[:, 0].tolist(), label="share of rounds")
    return figure


def jaccard_by_distance(run: Run, most: int = 10) -> dict[int, list[float]]:
    """Jaccard similarity of sets `distance` optimisations apart within a sample."""
    found: dict[int, list[float]] = {}
    for sets in optimised_sets(run, layers_of(run)):
        for i, one in enumerate(sets):
            for distance, other in enumerate(sets[i + 1 : i + 1 + most], 1):
                union = len(one | other)
                found.setdefault(distance, []).append(len(one & other) / union if union else 1.0)
    return dict(sorted(found.items()))


def jaccard(runs: list[Run], published: list[Printed]) -> "Figure":
    """Mean similarity of skip sets over their distance in optimisations (CLaSp Figure 3a)."""
    figure, axis = one_axis()
    names, styles = labels(runs), line_styles([run.method for run in runs])
    for run, name, style in zip(runs, names, styles, strict=True):
        if not (found := jaccard_by_distance(run)):
            raise SkipbenchError(
                f"{run.folder}: no sample has two skip sets; run longer samples or a shorter "
                "interval, such as method.interval=2"
            )
        means = [sum(v) / len(v) for v in found.values()]
        axis.plot(list(found), means, label=name, **style)
    axis.set(xlabel="distance (optimisations of the set)", ylabel="Jaccard similarity")
    axis.set_ylim(0, 1.02)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=7)
    return figure


def against_context(runs: list[Run], published: list[Printed]) -> "Figure":
    """Skipped attention and MLP sub-layers against context length, a point per set and a panel per
    run (KnapSpec Figure 3).
    """
    figure, axes = new_figure(1, len(runs), (1.6 + 3.2 * len(runs), 3.4))
    most = 1
    for here, run, name in zip(axes[0], runs, labels(runs), strict=True):
        points = []
        for position, at, skipped in skip_sets(run, layers_of(run)):
            s = run.sound[position]
            context = s.prompt_tokens + sum(r.emitted for r in s.method.rounds[:at])
            points.append((context, len(skipped.attention), len(skipped.mlp)))
        for part, color, marker, kind in ((1, BLUE, "o", "attention"), (2, ORANGE, "s", "MLP")):
            x, y = [p[0] for p in points], [p[part] for p in points]
            face = color if part == 1 else "none"  # hollow, so that both show where they agree
            size = 12 if part == 1 else 40
            here.scatter(x, y, edgecolors=color, facecolors=face, marker=marker, s=size, label=kind)
        here.set(xlabel="context length (tokens)", ylabel="skipped sub-layers")
        most = max([most, *(max(p[1:]) for p in points)])
        here.set_title(name, fontsize=8, loc="left")
        here.yaxis.get_major_locator().set_params(integer=True)
    for here in axes[0]:
        here.set_ylim(-0.05 * most, 1.08 * most)
    legend(figure)
    return figure
