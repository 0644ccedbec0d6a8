"""The figure of each experiment, and the figures that a single run supports."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from matplotlib.figure import Figure

from skipbench.errors import SkipbenchError
from skipbench.report.compared import BASELINE
from skipbench.report.figures import courses, curves, maps
from skipbench.report.figures.style import legend, styled
from skipbench.report.figures.sweeps import bars, sweep
from skipbench.report.published import Printed, numbers_of
from skipbench.runs.run import Run

Kind = Callable[[list[Run], list[Printed]], Figure]


def _sweep(axis: str, columns: str, label: str, key: str = "", mark: str = "best") -> Kind:
    return partial(sweep, axis=axis, columns=columns.split(), label=label, key=key, mark=mark)


def _bars(axis: str, columns: str, by_set: bool = False) -> Kind:
    return partial(bars, axis=axis, columns=columns.split(), by_set=by_set)


INTERVALS = "rounds between optimisations"
FIGURES: dict[str, Kind] = {
    "swift-figure2a": _bars("dataset.name", "alpha speedup"),
    "swift-figure2b": _bars("dataset.name", "alpha speedup", by_set=True),
    "swift-figure6": courses.course,
    "swift-figure6b": courses.breakdown,
    "swift-figure7": courses.course,
    "swift-figure8": curves.flexible,
    "swift-figure9": _bars("model.name", "speedup"),
    "swift-figure10": maps.skip_map,
    "swift-figure11": curves.latency,
    "swift-figure12": maps.refined,
    "clasp-figure3a": maps.jaccard,
    "clasp-figure3c": courses.breakdown,
    "clasp-figure4a": _sweep(
        "method.ratio", "tau speedup", "share of layers skipped", "skipped_layers"
    ),
    "clasp-figure4b": _sweep("method.interval", "tau speedup", INTERVALS, mark="falls beyond"),
    "clasp-figure4c": _sweep("method.stop.threshold", "tau speedup", "stop threshold"),
    "clasp-figure5": curves.by_task,
    "self-sd-figure2": curves.draft_length,
    "self-sd-figure4": curves.skipped,
    "self-sd-figure5": courses.threshold,
    **{f"self-sd-figure{n}": maps.skip_map for n in range(6, 11)},
    "knapspec-figure2": curves.correlation,
    "knapspec-figure3": maps.against_context,
    "knapspec-figure4": _sweep(
        "method.tau", "speedup memory_saved share_saved", "pruning threshold", "tau_pruning"
    ),
    "knapspec-figure5": maps.skip_map,
    "knapspec-figure6": _sweep("method.interval", "tokens_per_s share speedup", INTERVALS),
}
PRINTED = {"swift-figure6b": "swift-figure6"}  # figures of a part of another's numbers
NOT_RUN = {  # experiments whose figure does not come from runs
    "clasp-figure3b": "brute force goes over all sets of 12 free layers. Draw it, as in the paper "
    "with 12 of the 32 layers of Llama 3 8B, by 'python scripts/brute_force.py --model FOLDER "
    "--keep 10 > brute_force.jsonl' and 'python -m skipbench figure brute_force.jsonl'"
}
OF_ONE_RUN: dict[str, Kind] = {"course": courses.course, "map": maps.skip_map}


def draw(name: str, runs: list[Run], beside: bool = True) -> tuple[Figure, list[Run]]:
    """The figure and its runs; `beside`: with the paper's values, which are of its own models and
    datasets. Raises SkipbenchError for nothing to show.
    """
    shown = [run for run in runs if run.method != BASELINE]
    if not shown:
        raise SkipbenchError(
            f"{name}: no run of it can be drawn ({', '.join(r.method for r in runs) or 'none'})"
        )
    published = numbers_of(PRINTED.get(name, name)) if beside else []
    return _drawn(FIGURES[name], shown, published), shown


def _drawn(kind: Kind, runs: list[Run], published: list[Printed]) -> Figure:
    """The figure in the style of all; one legend, where its axes have none of their own."""
    with styled():
        figure = kind(runs, published)
        if not any(axis.get_legend() for axis in figure.axes):
            legend(figure)
        return figure


def draw_run(run: Run) -> dict[str, Figure]:
    """Every kind that one run supports, by name."""
    found = {}
    for name, kind in OF_ONE_RUN.items():
        with suppress(SkipbenchError):  # this run has nothing of the kind
            found[name] = _drawn(kind, [run], [])
    return found
