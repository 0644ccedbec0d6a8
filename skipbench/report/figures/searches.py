"""The sets that a search tries while a run decodes."""

import itertools

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.report.figures import style
from skipbench.report.figures.runs import layers_of, skip_sets
from skipbench.report.published import Printed
from skipbench.runs.run import Run

ROWS = 16  # sets of a map at most
KEPT = "#dddddd"


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
    for axis, kind, color in zip(
        axes[:, 0], ("attention", "MLP"), (style.RED, style.BLUE), strict=True
    ):
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
