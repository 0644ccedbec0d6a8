"""What choosing a skip set cost a cell: steps and seconds, from its trace or its records."""

from skipbench.bench.stored_sets import trials_of_trace
from skipbench.config.run_config import RunConfig
from skipbench.experiments.set_search import search_trace
from skipbench.runs.measures import Optimisation
from skipbench.runs.run import Run


def search_costs(config: RunConfig, run: Run) -> Optimisation | None:
    """Steps and seconds of a cell with a search of its own, or of one that searched while it
    decoded; None for others.

    Args:
        config: of the cell, before its skip set is filled in: the search's folder is named by it.
        run: of the cell.
    """
    if config.search_dataset is not None:
        trials = trials_of_trace(search_trace(config), config.search.iterations)
        bayes = sum(trial.point is not None for trial in trials)
        return _costs(len(trials), bayes, sum(trial.seconds for trial in trials))
    if "beta" not in config.method.node:
        return None
    # SWIFT: its steps' numbers are traced, and the seconds of adaptation are theirs.
    beta = int(config.method.node["beta"])
    steps = [int(o) for s in run.sound for o in s.trace.get("step", [])]
    bayes = sum(o > 1 and o % beta == 0 for o in steps) if beta else 0
    return _costs(len(steps), bayes, sum(s.method.seconds.adapt for s in run.sound))


def _costs(steps: int, bayes: int, seconds: float) -> Optimisation:
    return Optimisation(random_steps=steps - bayes, bayes_steps=bayes, seconds=seconds)
