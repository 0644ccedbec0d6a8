"""Searches for a skip set: the trials of one before a run, the sets of one while it decodes."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.report.definitions import caution
from skipbench.report.figures import style
from skipbench.report.figures.runs import layers_of, skip_sets
from skipbench.report.published import Printed
from skipbench.runs.files import read_lines
from skipbench.runs.reading import strict_json
from skipbench.runs.run import Run
from skipbench.search.run import Retimed, Trial, read_retimed, read_trials

ROWS = 16  # sets of a map at most
KEPT = "#dddddd"


def course(trials: Sequence[Trial], again: Retimed | None) -> Figure:
    """Speed of every set of a search, over the trials and over the number of skipped sub-layers
    (Self-SD Figure 4); `again`: the set that was chosen by new timings.
    """
    known = pd.DataFrame(
        [
            (t.iteration + 1, t.detail["skipped"], 1 / t.value, t.point is not None, t.skip)
            for t in trials
            if t.value and "skipped" in t.detail
        ],
        columns=["trial", "skipped", "speed", "suggested", "skip"],
    )
    if known.empty:
        raise SkipbenchError("no trial of this search has a value; let it go on")
    figure, axes = style.new_figure(1, 2, (9.6, 3.6))
    left, right = axes[0]
    right.sharey(left)
    for suggested, label, color in (
        (False, "set tried", style.GREY),
        (True, "suggested by Bayesian optimisation", style.ORANGE),
    ):
        if len(some := known[known.suggested == suggested]):
            for axis, x in ((left, some.trial), (right, some.skipped)):
                axis.scatter(x, some.speed, 14, color, label=label)
    look = {"where": "post", "color": style.BLUE, "linewidth": 1.2}
    left.step(known.trial, known.speed.cummax(), label="best so far", **look)
    best = known.groupby("skipped").speed.max()
    right.plot(best.index, best, "--", color=style.BLUE, linewidth=1, label="best of each number")
    if again is not None and len(chosen := known[known.skip == again.best]):
        for axis, x in ((left, chosen.trial), (right, chosen.skipped)):
            look = {"markersize": 10, "color": "black", "label": "chosen, by its new timings"}
            axis.plot(x.iloc[:1], [1 / again.value], "*", **look)
    left.set(xlabel="trial", ylabel="tokens per second")
    right.set(xlabel="skipped sub-layers")
    for axis in (left, right):
        style.whole_numbers(axis.xaxis)
    style.legend(figure)
    return figure


def of_trace(trace: Path) -> tuple[Figure, str]:
    """The figure of a search by its trace, and the line below it. Raises as `course`."""
    lines = read_lines(trace)
    trials, settings = read_trials(trace, len(lines)), strict_json(lines[0][1])["settings"]
    drawn = course(trials, read_retimed(trace.parent, len(trials)))
    return drawn, of_search(settings, len(trials))


def of_search(settings: Mapping[str, Any], trials: int) -> str:
    """The line below the figure of a search, from the settings in its trace."""
    model, data, method = (str(settings[k]["name"]) for k in ("model", "dataset", "method"))
    engine, strategy = settings["engine"]["name"], settings["search"]["strategy"]
    text = f"search of {method}, strategy {strategy}: {trials} sets; model {model}; data {data}"
    text += f"\nengine {engine}; speeds on the prompts of the search"
    return text + ("; not a replication" if caution([model], [data]) else "")


def sets_by_step(run: Run, layers: int) -> list[tuple[int, DraftPlan]]:
    """Each new set of a run of SWIFT with the number of optimisation steps before it. A step
    follows every round behind which there are more than `window` + 2 tokens.
    """
    window, before, found = run.setting("method.window"), 0, list[tuple[int, DraftPlan]]()
    if window is None or not any(sample.trace.get("step") for sample in run.sound):
        raise SkipbenchError(f"{run.method} tries no set while it decodes; draw a run of swift")
    for sample in run.sound:
        tokens = itertools.accumulate((r.emitted for r in sample.method.rounds), initial=1)
        waiting = sum(count <= window + 2 for count in [*tokens][1:])
        steps = len(sample.trace.get("step", []))
        for at, plan in skip_sets(sample, layers):
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
