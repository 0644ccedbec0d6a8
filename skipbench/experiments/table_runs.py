"""The runs of a table: one per cell of an experiment, from its record."""

from collections import defaultdict
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from skipbench.config.catalog import experiment_of, samples_in_paper
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import Cell, joined_run, repetitions, resolve_cell, to_score
from skipbench.experiments.grid import PlannedCell, printed_numbers
from skipbench.experiments.set_search import search_trace
from skipbench.metrics.repeats import summarise_repeats
from skipbench.metrics.summary import summarise
from skipbench.report.published import paper_of
from skipbench.runs.measures import Optimisation
from skipbench.runs.record import Sample, drafted
from skipbench.runs.run import Run, read_run
from skipbench.scoring.scorers import waits_for_score
from skipbench.search.run import read_trials


def table_runs(
    experiment: str, one: PlannedCell, config: RunConfig | None, reason: str | None
) -> list[Run]:
    """One run of a cell, or one for each group of samples that the experiment tells apart; `config`
    is None if it is not run, and `reason` says why it has no metrics.
    """
    row: dict[str, Any] = {
        "keys": one.keys,
        "stands_for": one.stands_for,
        "paper_samples": _paper_samples(experiment, one, config),
    }
    reason = reason or one.reason
    if config is None:
        kinds = ("model", "method", "dataset")
        names = {k: one.keys.get(k) or one.overrides.get(k, "") for k in kinds}
        return [Run(**row | names, reason=reason)]
    try:
        cell = resolve_cell(config)
    except NotHereError as error:
        return [Run(**row | config.names, reason=reason or str(error))]
    run = replace(run_entry(cell, reason), **row, noise=one.noise)
    if one.noise:
        return [run]
    if run.metrics is not None:
        costs = search_costs(config, run) or UNSET
        run = replace(run, metrics=replace(run.metrics, optimisation=costs))
    groups = experiment_of(experiment).published.groups
    missing = {key: group for key, group in groups.items() if key not in one.keys}
    if missing:
        run = replace(run, paper_samples=None)  # of all groups together
    split = [r for key, group in missing.items() for r in _by_group(run, cell, key, group)]
    if split and paper_of(experiment) is None:  # its table has the whole run, and both
        labels = [{k: v for k, v in r.keys.items() if k in missing} for r in split]
        return [run, *(replace(r, group=g) for r, g in zip(split, labels, strict=True))]
    return split or [run]


def _paper_samples(experiment: str, one: PlannedCell, config: RunConfig | None) -> int | str | None:
    """Samples that the paper decodes for the cell; `all` if the cell decodes only some of them."""
    paper, dataset = paper_of(experiment), one.keys.get("dataset")
    theirs = {number.keys.get("dataset") for number in printed_numbers(experiment)} - {None}
    if paper is None or config is None or "subtask" in one.keys or dataset not in theirs:
        return None
    count = samples_in_paper(str(dataset), paper[0])
    whole = config.limit is None and config.dataset.name == dataset
    return None if count is None and whole else count or "all"


def search_costs(config: RunConfig, run: Run) -> Optimisation | None:
    """Steps and seconds of a cell with a search of its own, or of one that searched while it
    decoded; None for others. `config` is without the skip set: it names the search's folder.
    """
    if config.search_dataset is not None:
        trials = read_trials(search_trace(config), config.search.iterations)
        steps, bayes = len(trials), sum(trial.point is not None for trial in trials)
        seconds = sum(trial.seconds for trial in trials)
    elif "beta" in config.method.node:
        # SWIFT: its steps' numbers are traced, and the seconds of adaptation are theirs.
        beta = int(config.method.node["beta"])
        numbers = [int(o) for s in run.sound for o in s.trace.get("step", [])]
        steps, bayes = len(numbers), sum(o > 1 and o % beta == 0 for o in numbers) if beta else 0
        seconds = sum(s.method.seconds.adapt for s in run.sound)
    else:
        return None
    return Optimisation(random_steps=steps - bayes, bayes_steps=bayes, seconds=seconds)


def _by_group(run: Run, cell: Cell, key: str, group: str) -> list[Run]:
    """The run once for each label of `group`, with the metrics of those samples."""
    layers = run.provenance.layers
    if run.metrics is None or layers is None:
        return []
    labelled, runs = defaultdict[str, list[list[Sample]]](list), list[Run]()
    for one in repetitions(cell):
        samples = read_run(one.folder).samples
        for label in dict.fromkeys(s.groups[group] for s in samples if group in s.groups):
            labelled[label].append([s for s in samples if s.groups.get(group) == label])
    for label, parts in labelled.items():
        pairs = [(part, summarise(part, layers, None, None, None)) for part in parts]
        metrics = pairs[0][1] if len(pairs) == 1 else summarise_repeats(pairs, layers)
        drafts = drafted(s for part in parts for s in part)
        runs.append(replace(run, keys=run.keys | {key: label}, drafted=drafts, metrics=metrics))
    return runs


def run_entry(cell: Cell, reason: str | None = None) -> Run:
    """The run of one cell, for tables; `reason` says why it has no metrics."""
    config = cell.config
    try:
        run = joined_run(cell)
    except SkipbenchError as error:  # the command prints it, too
        return replace(Run(id=cell.folder.name, reason=reason or str(error)), **config.names)
    reason = reason or run.reason
    if run.metrics is None:
        reason = reason or "not run yet"
    elif waits_for_score(config.dataset.scorer, run.metrics):
        reason = "; ".join(filter(None, (reason, to_score(cell.folder))))
    return replace(run, **config.names, label=config.label, reason=reason)
