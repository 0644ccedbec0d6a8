"""The runs of a table: one per cell of an experiment, from its record."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

from msgspec.structs import replace

from skipbench.config.catalog import experiment_of, sample_size
from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError, reason_of
from skipbench.experiments.grid import printed_numbers
from skipbench.experiments.resolve import checked_run, fill_skip_set
from skipbench.experiments.set_search import search_trace
from skipbench.metrics.summary import summarise
from skipbench.report.measured import measure, spread_key
from skipbench.report.published import Printed, paper_of, samples_of
from skipbench.runs.cell import Cell
from skipbench.runs.measures import Optimisation
from skipbench.runs.record import Turn, drafted
from skipbench.runs.run import Run
from skipbench.scoring.scorers import waits_for_score
from skipbench.search.run import read_trials


def table_runs(cell: Cell, beside: bool) -> list[Run]:
    """One run of a cell, or one for each group of samples that its experiment reports; these alone
    where the table has published numbers (`beside`).
    """
    experiment, keys = cell.experiment, cell.keys
    row: dict[str, Any] = {"keys": keys, "paper_samples": _paper_samples(cell)}
    run = replace(run_entry(cell), **row)
    if cell.composed is None or not cell.filled:
        return [run]
    config = cell.config
    new, context = config.dataset.max_new_tokens, config.dataset.context
    together = f"none, up to {new} new tokens" if context is None else str(context)
    lengths = {"max_new_tokens": str(new), "max_length": together}
    run = replace(run, noise=cell.noise, lengths=lengths)
    if cell.noise:
        return [run]
    run = replace(run, spreads=_spreads(run, printed_numbers(experiment), experiment))
    if run.metrics is not None:
        costs = search_costs(config, run)
        run = replace(run, metrics=replace(run.metrics, optimisation=costs))
    groups = experiment_of(experiment).published.groups
    missing = {key: group for key, group in groups.items() if key not in keys}
    if missing:
        run = replace(run, paper_samples=None)  # of all groups together
    split = [r for key, group in missing.items() for r in _by_group(run, key, group)]
    if split and not beside:  # the table has the whole run, too
        labels = [{k: v for k, v in r.keys.items() if k in missing} for r in split]
        return [run, *(replace(r, group=g) for r, g in zip(split, labels, strict=True))]
    return split or [run]


def _paper_samples(cell: Cell) -> int | str | None:
    """Samples that the paper decodes for the cell, by its text: `not named` where the size of the
    sample here is its code's or ours, `all` if the cell decodes only some of a whole dataset.
    """
    experiment, config = cell.experiment, cell.composed
    paper, dataset = paper_of(experiment), cell.keys.get("dataset")
    theirs = {number.keys.get("dataset") for number in printed_numbers(experiment)} - {None}
    if paper is None or config is None or "subtask" in cell.keys or dataset not in theirs:
        return None
    if (count := samples_of(experiment, str(dataset))) is not None:
        return count
    if sample_size(str(dataset), paper[0]) is not None:
        return "not named"
    return None if config.limit is None and config.dataset.name == dataset else "all"


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
    decoded; None for others.
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


def run_entry(cell: Cell) -> Run:
    """The run of one cell, for tables, as far as it is; its `reason` says what is missing."""
    if cell.composed is None:
        kinds = ("model", "method", "dataset")
        names: dict[str, Any] = {k: cell.keys.get(k) or cell.overrides.get(k, "") for k in kinds}
        return Run(**names, reason=cell.reason)
    config, reason = cell.config, reason_of(cell.error) if cell.error else cell.reason
    try:
        fill_skip_set(cell)
        run = cell.run or checked_run(cell)
    except SkipbenchError as error:  # the command prints it, too
        place = f"{cell.row.name}/{cell.folder.name}" if cell.filled else None
        return replace(Run(id=place, reason=reason or str(error)), **config.names)
    remarks, layers, turns = [reason], run.provenance.layers, run.turns
    if run.status.state in ("running", "interrupted", "done") and not run.has(config.limit):
        count = len({turn.unit for turn in turns})
        remarks.append(f"{count} of {config.limit or 'all'} prompts so far")
        if turns and layers is not None and run.metrics is None:
            run = replace(run, metrics=summarise(turns, run.arm, layers))
    if run.metrics is None:
        remarks = [reason or "not run yet"]
    else:
        run = replace(run, drafted=drafted(turns, run.arm))
        waits = waits_for_score(config.dataset.scorer, run.metrics)
        remarks += [to_score(cell.folder)] if waits else []
    reason = "; ".join(filter(None, remarks)) or None
    return replace(run, **config.names, label=config.label, reason=reason)


def to_score(folder: Path) -> str:
    """The command for a run whose code is not executed yet."""
    return f"not scored yet: python -m skipbench score {folder}"
