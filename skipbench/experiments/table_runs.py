"""The runs of a table: one per cell of an experiment, from its record."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import stdev
from typing import Any

from msgspec.structs import replace

from skipbench.config.catalog import experiment_of, sample_size
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.grid import PlannedCell, printed_numbers
from skipbench.experiments.resolve import (
    checked_run,
    resolve_cell,
    to_score,
)
from skipbench.experiments.set_search import search_trace
from skipbench.metrics.summary import summarise
from skipbench.report.measured import measure, spread_key
from skipbench.report.published import Printed, paper_of, samples_of
from skipbench.report.tables.formats import for_terminal
from skipbench.report.tables.runs import row_table
from skipbench.runs.cell import Cell
from skipbench.runs.measures import Optimisation
from skipbench.runs.record import Turn, drafted
from skipbench.runs.run import Run
from skipbench.scoring.scorers import waits_for_score
from skipbench.search.run import read_trials


def table_runs(
    experiment: str, one: PlannedCell, config: RunConfig | None, reason: str | None, beside: bool
) -> list[Run]:
    """One run of a cell, or one for each group of samples that the experiment reports.

    Args:
        config: None if the cell is not run.
        reason: why it has no metrics.
        beside: the table has published numbers, which are of groups alone.
    """
    row: dict[str, Any] = {
        "keys": one.keys,
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
    run = replace(run_entry(cell, reason), **row, noise=one.noise, lengths=_lengths(config))
    if one.noise:
        return [run]
    run = replace(run, spreads=_spreads(run, printed_numbers(experiment), experiment))
    if run.metrics is not None:
        costs = search_costs(config, run)
        run = replace(run, metrics=replace(run.metrics, optimisation=costs))
    groups = experiment_of(experiment).published.groups
    missing = {key: group for key, group in groups.items() if key not in one.keys}
    if missing:
        run = replace(run, paper_samples=None)  # of all groups together
    split = [r for key, group in missing.items() for r in _by_group(run, key, group)]
    if split and not beside:  # the table has the whole run, too
        labels = [{k: v for k, v in r.keys.items() if k in missing} for r in split]
        return [run, *(replace(r, group=g) for r, g in zip(split, labels, strict=True))]
    return split or [run]


def _paper_samples(experiment: str, one: PlannedCell, config: RunConfig | None) -> int | str | None:
    """Samples that the paper decodes for the cell, by its text: `not named` where the size of the
    sample here is its code's or ours, `all` if the cell decodes only some of a whole dataset.
    """
    paper, dataset = paper_of(experiment), one.keys.get("dataset")
    theirs = {number.keys.get("dataset") for number in printed_numbers(experiment)} - {None}
    if paper is None or config is None or "subtask" in one.keys or dataset not in theirs:
        return None
    if (count := samples_of(experiment, str(dataset))) is not None:
        return count
    if sample_size(str(dataset), paper[0]) is not None:
        return "not named"
    return None if config.limit is None and config.dataset.name == dataset else "all"


def _lengths(config: RunConfig) -> dict[str, str]:
    """The tokens that an output may have, and prompt and output together."""
    new, context = config.dataset.max_new_tokens, config.dataset.context
    together = f"none, up to {new} new tokens" if context is None else str(context)
    return {"max_new_tokens": str(new), "max_length": together}


def _spreads(run: Run, numbers: Sequence[Printed], experiment: str) -> dict[str, dict[str, float]]:
    """By arm the standard deviation over the samples of each number of `numbers` that has one in
    the paper, by `spread_key`.
    """
    wanted = {spread_key(n.column, n.keys): n for n in numbers if n.spread is not None}
    layers, paper = run.provenance.layers, (paper_of(experiment) or ("",))[0]
    if not wanted or run.metrics is None or layers is None:
        return {}
    each = [summarise([turn], run.arm, layers) for turn in run.sound]
    profiled = {"profiled": run.metrics.profiled}
    each = [replace(m, **profiled, vanilla=replace(m.baseline, **profiled)) for m in each]
    found: dict[str, dict[str, float]] = {}
    for arm, ours in (("method", each), ("vanilla", [one.baseline for one in each])):
        for key, n in wanted.items():
            places = n.keys.get("phase"), n.keys.get("part")
            values = [measure(one, n.column, *places, paper).value for one in ours]
            known = [value for value in values if value is not None]
            if len(known) > 1:
                found.setdefault(arm, {})[key] = stdev(known)
    return found


def search_costs(config: RunConfig, run: Run) -> Optimisation | None:
    """Steps and seconds of a cell with a search of its own, or of one that chose its sets while it
    decoded; None for others. `config` is without the skip set: it names the search's folder.
    """
    if config.search_dataset is not None:
        trials = read_trials(search_trace(config), config.search.iterations)
        steps, bayes = len(trials), sum(trial.point is not None for trial in trials)
        seconds = sum(trial.seconds for trial in trials)
    elif "beta" in config.method.node:
        # SWIFT: its steps' numbers are traced, and the seconds of adaptation are theirs.
        beta = int(config.method.node["beta"])
        numbers = [int(o) for arm in run.arms for o in arm.trace.get("step", [])]
        steps, bayes = len(numbers), sum(o > 1 and o % beta == 0 for o in numbers) if beta else 0
        seconds = sum(arm.seconds.adapt for arm in run.arms)
    elif programmes := sum(len(arm.trace.get("optimised", [])) for arm in run.arms):
        adapting = sum(arm.seconds.adapt for arm in run.arms)
        return Optimisation(programmes=programmes, seconds=adapting)
    else:
        return None
    return Optimisation(random_steps=steps - bayes, bayes_steps=bayes, seconds=seconds)


def _by_group(run: Run, key: str, group: str) -> list[Run]:
    """The run once for each label of `group`, with the metrics of those samples."""
    layers = run.provenance.layers
    if run.metrics is None or layers is None:
        return []
    labelled = defaultdict[str, list[Turn]](list)
    for turn in run.turns:
        if group in turn.groups:
            labelled[turn.groups[group]].append(turn)
    return [
        replace(
            run,
            keys=run.keys | {key: label},
            drafted=drafted(part, run.arm),
            metrics=summarise(part, run.arm, layers),
        )
        for label, part in labelled.items()
    ]


def run_entry(cell: Cell, reason: str | None = None) -> Run:
    """The run of one cell, for tables; `reason` says why it has no metrics."""
    config = cell.config
    try:
        run = checked_run(cell)
    except SkipbenchError as error:  # the command prints it, too
        return replace(Run(id=cell.folder.name, reason=reason or str(error)), **config.names)
    if run.metrics is None:
        reason = reason or "not run yet"
    else:
        run = replace(run, drafted=drafted(run.turns, run.arm))
        if waits_for_score(config.dataset.scorer, run.metrics):
            reason = "; ".join(filter(None, (reason, to_score(cell.folder))))
    return replace(run, **config.names, label=config.label, reason=reason)


def sweep_table(runs: Sequence[Run]) -> str:
    """The table of the cells of a sweep, for a terminal."""
    return for_terminal(row_table(runs, title="Sweep"))
