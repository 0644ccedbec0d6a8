"""What a table is given of an experiment: one run per cell, from its record."""

from msgspec import UNSET
from msgspec.structs import replace

from skipbench.config.catalog import paper_side, samples_in_paper
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import Cell, resolve_cell, to_score
from skipbench.experiments.grid import PlannedCell, printed_rows
from skipbench.experiments.repeats import joined_run, repetitions
from skipbench.experiments.search_costs import search_costs
from skipbench.metrics.drafted import drafted
from skipbench.metrics.repeats import summarise_repeats
from skipbench.metrics.summary import summarise
from skipbench.report.published import paper_of
from skipbench.runs.measures import Metrics
from skipbench.runs.record import Sample
from skipbench.runs.run import Run, read_run


def table_runs(
    experiment: str, one: PlannedCell, config: RunConfig | None, reason: str | None
) -> list[Run]:
    """What rendering is given of a cell: one run, or one for each group of samples that the
    experiment tells apart.
    """
    planned = Run(
        keys=one.keys,
        stands_for=one.stands_for,
        reason=reason or one.reason,
        paper_samples=_paper_samples(experiment, one, config),
    )
    if config is None:
        names = {
            k: one.keys.get(k) or one.overrides.get(k, "") for k in ("model", "method", "dataset")
        }
        return [replace(planned, **names)]
    try:
        cell = resolve_cell(config)
    except NotHereError as error:
        return [replace(planned, **config.names, reason=reason or str(error))]
    run = replace(
        run_entry(cell, planned.reason),
        keys=planned.keys,
        stands_for=planned.stands_for,
        paper_samples=planned.paper_samples,
    )
    if one.noise:
        return [replace(run, noise=True)]
    if run.metrics is not None:
        run = replace(
            run, metrics=replace(run.metrics, optimisation=search_costs(config, run) or UNSET)
        )
    groups = paper_side(experiment).get("groups", {})
    missing = {key: group for key, group in groups.items() if key not in one.keys}
    if missing:
        run = replace(run, paper_samples=None)  # of all groups together
    split = [r for key, group in missing.items() for r in _by_group(run, cell, key, group)]
    if split and paper_of(experiment) is None:  # its table has the whole run, and both
        return [
            run,
            *(replace(r, group={k: v for k, v in r.keys.items() if k in missing}) for r in split),
        ]
    return split or [run]


def _paper_samples(experiment: str, one: PlannedCell, config: RunConfig | None) -> int | str | None:
    """How many samples the paper decodes for the cell: a number, or `all` of a dataset of which the
    cell decodes some, or another.
    """
    paper, dataset = paper_of(experiment), one.keys.get("dataset")
    theirs = {row.get("dataset") for row in printed_rows(experiment)} - {None}
    if paper is None or config is None or "subtask" in one.keys or dataset not in theirs:
        return None
    count = samples_in_paper(str(dataset), paper[0])
    whole = config.limit is None and config.dataset.name == dataset
    return None if count is None and whole else count or "all"


def _by_group(run: Run, cell: Cell, key: str, group: str) -> list[Run]:
    """The run once for each label of `group`, with the metrics of those samples."""
    layers = run.provenance.layers
    if run.metrics is None or layers is None:
        return []
    labelled: dict[str, list[list[Sample]]] = {}
    for one in repetitions(cell):
        of_run: dict[str, list[Sample]] = {}
        for sample in read_run(one.folder).samples:
            if group in sample.groups:
                of_run.setdefault(sample.groups[group], []).append(sample)
        for label, samples in of_run.items():
            labelled.setdefault(label, []).append(samples)
    return [
        replace(
            run,
            keys=run.keys | {key: label},
            drafted=drafted(s for samples in runs for s in samples),
            metrics=_group_metrics(runs, layers),
        )
        for label, runs in labelled.items()
    ]


def _group_metrics(runs: list[list[Sample]], layers: int) -> Metrics:
    each = [summarise(samples, layers, None, None, None) for samples in runs]
    return (
        each[0] if len(each) == 1 else summarise_repeats(list(zip(runs, each, strict=True)), layers)
    )


def run_entry(cell: Cell, reason: str | None = None) -> Run:
    """The run of one cell, for tables; `reason` says why it has no metrics."""
    from skipbench.scoring.execute import waits_for_score

    config = cell.config
    try:
        run = joined_run(cell)
    except SkipbenchError as error:  # the command prints it, too
        run = Run(id=cell.folder.name, reason=reason or str(error))
        return replace(run, **config.names)
    reason = reason or run.reason
    if run.metrics is None:
        reason = reason or "not run yet"
    elif waits_for_score(config.dataset.scorer, run.metrics):
        reason = "; ".join(filter(None, (reason, to_score(cell.folder))))
    return replace(run, **config.names, label=config.label, reason=reason)
