"""Runs of figures: the names of their lines, and their quantities."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import alpha, rounds_with_sets
from skipbench.runs.record import VANILLA, Arm, drafted
from skipbench.runs.run import Run, read_run

_PHRASES = {
    "search.on": "set of {}",
    "search.iterations": "{} sets tried",
    "stop@method.stop": "{} stop",
}
_UNNAMED = re.compile(r"model|method|engine|limit|search|dataset(\..*)?")  # name no line


def finished_run(folder: Path) -> Run:
    """A finished run with a sound sample; SkipbenchError for any other folder."""
    run = read_run(folder)
    groups = ("model", "method", "dataset", "engine")
    if run.base != VANILLA:
        wrong = "is a server's, without rounds; figure NAME draws its results/tables/NAME.json"
    elif missing := [group for group in groups if group not in run.settings]:
        wrong = f"holds no run, for its config.yaml has no {', '.join(missing)}"
    elif run.metrics is None or not run.done:
        wrong = "is not finished; run its command again, then draw it"
    elif not run.sound:
        wrong = "has no sound sample; see its status.json"
    else:
        return run
    raise SkipbenchError(f"{folder} {wrong}")


def labels(runs: Sequence[Run], without: Sequence[str] = ()) -> list[str]:
    """A name for each run: its method, and what differs but `without`, which is on an axis."""
    varying = [
        name
        for name in ("model", "dataset")
        if not {name, f"{name}.name"} & {*without} and len({getattr(r, name) for r in runs}) > 1
    ]
    settings, found = [_settings(run) for run in runs], []
    for run, own in zip(runs, settings, strict=True):
        same_method = [s for s, r in zip(settings, runs, strict=True) if r.method == run.method]
        phrases = [
            _PHRASES.get(k, k.rpartition(".")[2].replace("_", " ") + " {}").format(v)
            for k, v in own.items()
            if k not in without and len({s.get(k) for s in same_method}) > 1
        ]
        found.append(", ".join([run.method, *(getattr(run, name) for name in varying), *phrases]))
    return found


def _settings(run: Run) -> dict[str, str]:
    """Settings that may name a run: the axes of its experiment, else all of its method."""
    if run.axes:
        return {k: v for k, v in run.axes.items() if not _UNNAMED.fullmatch(k)}
    stop = {f"stop.{k}": v for k, v in (run.setting("method.stop") or {}).items()}
    left_out = ("name", "_target_", "skip", "stop", "stop._target_", "latency")
    return {
        f"method.{k}": str(v)
        for k, v in (run.setting("method") | stop).items()
        if k not in left_out and not isinstance(v, dict)
    }


def repeated(runs: Sequence[Run]) -> str:
    """The line below a figure in which runs that sweep the same keys drafted the same tokens."""
    drafts = Counter(
        (run.model, run.method, run.dataset, *sorted(run.axes), drafted(run.sound, run.arm))
        for run in runs
        if run.method != VANILLA
    )
    same = sum(count for count in drafts.values() if count > 1)
    text = "runs drafted the same tokens as another: the swept key changed nothing in them"
    return f"{same} {text}" if same else ""


def skip_sets(arm: Arm, layers: int) -> list[tuple[int, DraftPlan]]:
    """`(round, set)` of every change in the trace, without one of the last set."""
    changes = arm.skip_changes or [(0, "")]
    return [(int(at), DraftPlan.parse(text, layers)) for at, text in changes]


def optimised_sets(run: Run, layers: int) -> list[list[tuple[int, frozenset[int]]]]:
    """For each optimisation of every sample that a round followed the tokens emitted before it, and
    its skip set; without `optimised` in the trace only changes are known.
    """
    found = []
    for arm in run.arms:
        before = [*itertools.accumulate((r.emitted for r in arm.rounds), initial=0)]
        if (optimised := arm.trace.get("optimised")) is None:
            rounds = len(arm.rounds)
            followed = [(at, skip) for at, skip in skip_sets(arm, layers) if at < rounds]
            known = [(before[at], skip.skipped) for at, skip in followed]
            found.append([one for number, one in enumerate(known) if one[1] or number])
        else:
            active = [skip for _, skip, _ in rounds_with_sets(arm, layers)]
            drafts = ((before[at], active[at]) for at in optimised if at < len(active))
            found.append([(at, skip.skipped) for at, skip in drafts if skip])
    return [sets for sets in found if sets]


def layers_of(run: Run) -> int:
    """Layers of the run's model; SkipbenchError if it skips nothing, or they are not recorded."""
    if not any(arm.skip_changes for arm in run.arms) or run.provenance.layers is None:
        raise SkipbenchError(f"{run.method} skips no sub-layer, so that it has no skip map")
    return run.provenance.layers


def speedups(run: Run) -> list[float]:
    """Speedup of each sample, prefill included; NaN where nothing was decoded."""
    return [float(v) for v in np.array([turn.ratio(VANILLA, run.arm) for turn in run.sound], float)]


def acceptances(run: Run) -> list[float]:
    """Acceptance rate of each sample; NaN where nothing was drafted."""
    return [float(v) for v in np.array([alpha(arm.rounds) for arm in run.arms], float)]
