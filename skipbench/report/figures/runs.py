"""What figures are drawn from: a run's folder as plain data."""

from pathlib import Path
from typing import Any, TypedDict

from skipbench.errors import SkipbenchError
from skipbench.runs.record import Sample
from skipbench.runs.store import load_run, read_samples
from skipbench.skipset import SkipSet


class Run(TypedDict):
    """One run. `settings` is its config.yaml, `samples` those that did not fail, in order."""

    folder: str
    model: str
    method: str
    dataset: str
    engine: str
    device: str
    settings: dict[str, Any]
    metrics: dict[str, Any]
    samples: list[Sample]


def read_run(folder: Path) -> Run:
    """Reads a finished run.

    Raises:
        SkipbenchError: the folder holds no run, one that is not finished, or one without a sound sample.
    """
    state = load_run(folder)
    if state["config"] is None:
        raise SkipbenchError(f"{folder} holds no run; give a folder such as results/runs/tiny_swift_mini-stories_...")
    if state["metrics"] is None or (state["status"] or {}).get("state") != "done":
        raise SkipbenchError(f"{folder} is not finished; run its command again, then draw it")
    samples = sorted(read_samples(folder / "samples.jsonl"), key=lambda s: s.index)
    samples = [s for s in samples if s.lossless != "failed"]
    if not samples:
        raise SkipbenchError(f"{folder} has no sound sample; see its status.json")
    settings = state["config"]
    if missing := [group for group in ("model", "method", "dataset", "engine") if group not in settings]:
        raise SkipbenchError(f"{folder / 'config.yaml'} has no {', '.join(missing)}; move the folder away")
    device = str((state["provenance"] or {}).get("device") or settings["model"].get("device"))
    return Run(
        folder=str(folder),
        model=settings["model"]["name"],
        method=settings["method"]["name"],
        dataset=settings["dataset"]["name"],
        engine=settings["engine"]["name"],
        device=device,
        settings=settings,
        metrics=state["metrics"],
        samples=samples,
    )


def skip_sets(run: Run, layers: int) -> list[tuple[int, int, SkipSet]]:
    """`(sample, round, set)` wherever the trace says that the set changed; a run without a trace gives its last sets."""
    found = []
    for position, sample in enumerate(run["samples"]):
        changes = sample.trace.get("skip") or [[0, sample.skip]]
        found += [(position, int(at), SkipSet.parse(text, layers)) for at, text in changes]
    return found


def layers_of(run: Run) -> int:
    """Layers of the run's model: from the share of sub-layers that its metrics say is skipped.

    Raises:
        SkipbenchError: nothing was skipped, so that the records do not tell.
    """
    skipped = run["metrics"]["skipped"]
    if not skipped or not skipped.get("ratio"):
        raise SkipbenchError(f"{run['method']} skips no sub-layer, so that it has no skip map; draw another method")
    return round(float(skipped["attention"] + skipped["mlp"]) / float(skipped["ratio"]) / 2)


def speedups(run: Run) -> list[float]:
    """Decode speedup of each sample: vanilla's seconds a token / the method's; NaN where nothing was decoded."""
    found = []
    for s in run["samples"]:
        base, ours = ((a.seconds.decode, sum(r.emitted for r in a.rounds)) for a in (s.vanilla, s.method))
        sound = ours[0] and base[1]
        found.append(base[0] / base[1] * ours[1] / ours[0] if sound else float("nan"))
    return found


def acceptances(run: Run) -> list[float]:
    """Acceptance rate of each sample; NaN where nothing was drafted."""
    found = []
    for s in run["samples"]:
        steps = sum(r.steps for r in s.method.rounds)
        found.append(sum(r.accepted for r in s.method.rounds) / steps if steps else float("nan"))
    return found
