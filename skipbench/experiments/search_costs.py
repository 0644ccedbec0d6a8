"""What choosing a skip set cost a cell: steps and seconds, from its trace or its records."""

from pathlib import Path
from typing import Any

from skipbench.bench.stored_sets import trials_of_trace
from skipbench.config.run_config import RunConfig
from skipbench.experiments.set_search import search_trace
from skipbench.runs.record import Sample
from skipbench.runs.store import read_samples


def search_costs(config: RunConfig, folder: Path) -> dict[str, Any]:
    """`{"optimisation": {"random_steps", "bayes_steps", "seconds"}}` of a cell with a search of its
    own, or of one that searched while it decoded; empty for others.

    Args:
        config: of the cell, before its skip set is filled in: the search's folder is named by it.
        folder: of the cell's run.
    """
    if config.search_dataset is not None:
        trials = trials_of_trace(search_trace(config), config.search.iterations)
        bayes = sum(t["point"] is not None for t in trials)
        seconds = sum(float(t["seconds_suggest"]) + float(t["seconds_objective"]) for t in trials)
        return _costs(len(trials), bayes, seconds)
    if "beta" not in config.method.node:
        return {}
    samples = [s for s in read_samples(folder / "samples.jsonl") if s.lossless != "failed"]
    return _while_decoding(samples, int(config.method.node["beta"]))


def _while_decoding(samples: list[Sample], beta: int) -> dict[str, Any]:
    """SWIFT's steps, whose numbers stand in the trace, and the seconds of adaptation, which are
    theirs.
    """
    steps = [int(o) for s in samples for o in s.trace.get("step", [])]
    bayes = sum(o > 1 and o % beta == 0 for o in steps) if beta else 0
    return _costs(len(steps), bayes, sum(s.method.seconds.adapt for s in samples))


def _costs(steps: int, bayes: int, seconds: float) -> dict[str, Any]:
    own = {"random_steps": steps - bayes, "bayes_steps": bayes, "seconds": seconds}
    return {"optimisation": own}
