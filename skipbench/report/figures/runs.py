"""Quantities of runs that figures draw, and the names of their lines."""

import math
from pathlib import Path
from typing import NamedTuple

from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import alpha, alpha_cond
from skipbench.metrics.drafted import alike, drafted
from skipbench.runs.run import Run, read_run
from skipbench.skipset import SkipSet


def finished_run(folder: Path) -> Run:
    """A finished run with its samples.

    Raises:
        SkipbenchError: the folder holds no run, one that is not finished, or one without a sound
            sample.
    """
    run = read_run(folder)
    if not run.settings:
        raise SkipbenchError(
            f"{folder} holds no run; give a folder such as results/runs/tiny_swift_mini-stories_..."
        )
    if run.metrics is None or not run.done:
        raise SkipbenchError(f"{folder} is not finished; run its command again, then draw it")
    if not run.sound:
        raise SkipbenchError(f"{folder} has no sound sample; see its status.json")
    if missing := [
        group for group in ("model", "method", "dataset", "engine") if group not in run.settings
    ]:
        raise SkipbenchError(
            f"{folder / 'config.yaml'} has no {', '.join(missing)}; move the folder away"
        )
    return run


def labels(runs: list[Run], without: tuple[str, ...] = ()) -> list[str]:
    """A name for each run: its method, and of model, dataset and settings what tells it from the
    others.

    Args:
        without: settings such as `method.interval` that stand elsewhere in the figure, on an axis.
    """
    settings = [{k: v for k, v in _settings(run).items() if k not in without} for run in runs]
    varying = [
        name
        for name in ("model", "dataset")
        if not {name, f"{name}.name"} & {*without} and len({getattr(r, name) for r in runs}) > 1
    ]
    found = []
    for run, own in zip(runs, settings, strict=True):
        alike = [s for s, r in zip(settings, runs, strict=True) if r.method == run.method]
        differing = {k: v for k, v in own.items() if len({s.get(k) for s in alike}) > 1}
        phrases = (
            _PHRASES.get(k, k.rpartition(".")[2].replace("_", " ") + " {}").format(v)
            for k, v in differing.items()
        )
        names = (getattr(run, name) for name in varying)
        found.append(", ".join([run.method, *names, *phrases]))
    return found


_PHRASES = {
    "search.on": "set of {}",
    "search.iterations": "{} sets tried",
    "stop@method.stop": "{} stop",
}


def _settings(run: Run) -> dict[str, str]:
    """The settings by which a run may be named: the axes of its experiment, else all of its
    method's.
    """
    if run.axes:
        left_out = ("model", "method", "dataset", "engine", "limit", "search")
        return {
            k: v for k, v in run.axes.items() if k not in left_out and not k.startswith("dataset.")
        }
    stop = run.setting("method.stop") or {}
    method = run.settings["method"] | {f"stop.{k}": v for k, v in stop.items()}
    left_out = ("name", "_target_", "skip", "stop", "stop._target_", "latency")
    return {
        f"method.{k}": str(v)
        for k, v in method.items()
        if k not in left_out and not isinstance(v, dict)
    }


class Swept(NamedTuple):
    """Number of runs that differ from others in a swept key only, and of distinct drafts among
    them.
    """

    runs: int
    identical: int
    """Runs whose draft is that of another."""
    drafts: int

    @property
    def mark(self) -> str | None:
        """The line below a figure in which runs repeat each other."""
        if not self.identical:
            return None
        return (
            f"{self.identical} of {self.runs} runs drafted the same tokens as another: the "
            "swept key changed nothing in them"
        )

    @property
    def in_vain(self) -> bool:
        """True if at most half of the runs have a draft of their own, so that the figure shows
        mostly noise.
        """
        return self.runs > 0 and 2 * self.drafts <= self.runs


def swept(runs: list[Run]) -> Swept:
    """Compares the drafts of runs that sweep the same keys with one model, method and dataset;
    vanilla drafts nothing.
    """
    sweeps: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        if run.method != "vanilla":
            group = (run.model, run.method, run.dataset, *sorted(run.axes))
            sweeps.setdefault(group, []).append(drafted(run.sound))
    sizes = [
        len(members) for drafts in sweeps.values() if len(drafts) > 1 for members in alike(drafts)
    ]
    return Swept(sum(sizes), sum(size for size in sizes if size > 1), len(sizes))


def skip_sets(run: Run, layers: int) -> list[tuple[int, int, SkipSet]]:
    """`(sample, round, set)` wherever the trace says that the set changed; a run without a trace
    gives its last sets.
    """
    found = []
    for position, sample in enumerate(run.sound):
        changes = sample.trace.get("skip") or [[0, sample.skip]]
        found += [(position, int(at), SkipSet.parse(text, layers)) for at, text in changes]
    return found


def optimised_sets(run: Run, layers: int) -> list[list[frozenset[int]]]:
    """Skipped sub-layers that each optimisation of every sample chose, in order, changed or not.

    The trace counts optimisations as `optimised`, the rounds before each, and says a set where it
    is first drafted with; one that no draft followed is left out. Without that key only changes are
    known, and the full model before them is not one.
    """
    found, changes = [], skip_sets(run, layers)
    for position, sample in enumerate(run.sound):
        known = [(at, s.skipped) for p, at, s in changes if p == position]
        optimised = sample.trace.get("optimised")
        if optimised is None:
            found.append([s for number, (_, s) in enumerate(known) if s or number])
            continue
        drafted = [at for at in optimised if at < len(sample.method.rounds)]
        used = ([s for start, s in known if start <= at] for at in drafted)
        found.append([sets[-1] for sets in used if sets])
    return [sets for sets in found if sets]


def layers_of(run: Run) -> int:
    """Layers of the run's model.

    Raises:
        SkipbenchError: the method skips nothing, or the records do not say it.
    """
    if not any(s.skip or s.trace.get("skip") for s in run.sound):
        raise SkipbenchError(
            f"{run.method} skips no sub-layer, so that it has no skip map; draw another method"
        )
    if run.provenance.layers is None:
        raise SkipbenchError(
            f"{run.folder}/provenance.json does not say the model's layers; run the cell again"
        )
    return run.provenance.layers


def speedups(run: Run) -> list[float]:
    """Decode speedup of each sample; NaN where nothing was decoded."""
    return [math.nan if s.speedup is None else s.speedup for s in run.sound]


def acceptances(run: Run) -> list[float]:
    """Acceptance rate of each sample; NaN where nothing was drafted."""
    rates = [alpha(s.method.rounds) for s in run.sound]
    return [math.nan if rate is None else rate for rate in rates]


def decoded_share(run: Run) -> float:
    """`alpha_cond`, the acceptance rate of the papers' models of speed; NaN without drafts."""
    rate = alpha_cond([r for s in run.sound for r in s.method.rounds])
    return math.nan if rate is None else rate


def by_group(run: Run, group: str) -> dict[str, list[float]]:
    """Speedups of the samples of each label that `group` has in them, such as the tasks of
    Spec-Bench.
    """
    found: dict[str, list[float]] = {}
    for sample, speedup in zip(run.sound, speedups(run), strict=True):
        if group in sample.groups:
            found.setdefault(str(sample.groups[group]), []).append(speedup)
    return found
