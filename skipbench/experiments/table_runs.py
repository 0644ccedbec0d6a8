"""What a table is given of an experiment: one run per cell, from its record."""

from typing import Any

from skipbench.config.catalog import paper_side, samples_in_paper
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import Cell, resolve_cell, to_score
from skipbench.experiments.grid import PlannedCell, printed_rows
from skipbench.experiments.repeats import joined_record, repetitions
from skipbench.experiments.search_costs import search_costs
from skipbench.metrics.drafted import drafted
from skipbench.metrics.repeats import summarise_repeats
from skipbench.metrics.summary import summarise
from skipbench.report.published import paper_of
from skipbench.runs.provenance import engine_text
from skipbench.runs.record import Sample
from skipbench.runs.store import read_samples

Run = dict[str, Any]


def table_runs(
    experiment: str, one: PlannedCell, config: RunConfig | None, reason: str | None
) -> list[Run]:
    """What rendering is given of a cell: one run, or one for each group of samples that the
    experiment tells apart.
    """
    about = {"keys": one.keys, "stands_for": one.stands_for} | _paper_samples(
        experiment, one, config
    )
    if config is None:
        names = {k: one.keys.get(k) or one.overrides.get(k) for k in ("model", "method", "dataset")}
        return [names | {"metrics": None, "reason": one.reason, "provenance": {}} | about]
    try:
        cell = resolve_cell(config)
    except NotHereError as error:
        return [
            config.names
            | {"metrics": None, "reason": reason or str(error), "provenance": {}}
            | about
        ]
    run = run_entry(cell, reason or one.reason) | about
    if one.noise:
        return [run | {"noise": True}]
    if run["metrics"] is not None:
        run["metrics"] = run["metrics"] | search_costs(config, cell.folder)
    groups = paper_side(experiment).get("groups", {})
    missing = {key: group for key, group in groups.items() if key not in one.keys}
    if missing:
        run.pop("paper_samples", None)  # of all groups together
    split = [r for key, group in missing.items() for r in _by_group(run, cell, key, group)]
    if split and paper_of(experiment) is None:  # its table has the whole run, and both
        return [
            run,
            *(r | {"group": {k: v for k, v in r["keys"].items() if k in missing}} for r in split),
        ]
    return split or [run]


def _paper_samples(experiment: str, one: PlannedCell, config: RunConfig | None) -> Run:
    """How many samples the paper decodes for the cell: a number, or `all` of a dataset of which the
    cell decodes some, or another.
    """
    own, dataset = paper_of(experiment), one.keys.get("dataset")
    theirs = {row.get("dataset") for row in printed_rows(experiment)} - {None}
    if own is None or config is None or "subtask" in one.keys or dataset not in theirs:
        return {}
    count = samples_in_paper(str(dataset), own[0])
    whole = config.limit is None and config.dataset.name == dataset
    return {} if count is None and whole else {"paper_samples": count or "all"}


def _by_group(run: Run, cell: Cell, key: str, group: str) -> list[Run]:
    """The run once for each label of `group`, with the metrics of those samples."""
    layers = run["provenance"].get("layers")
    if run["metrics"] is None or layers is None:
        return []
    labelled: dict[str, list[list[Sample]]] = {}
    for one in repetitions(cell):
        of_run: dict[str, list[Sample]] = {}
        for sample in read_samples(one.folder / "samples.jsonl"):
            if group in sample.groups:
                of_run.setdefault(sample.groups[group], []).append(sample)
        for label, samples in of_run.items():
            labelled.setdefault(label, []).append(samples)
    return [
        run
        | {"keys": run["keys"] | {key: label}, "drafted": drafted(s for own in runs for s in own)}
        | {"metrics": _group_metrics(runs, layers)}
        for label, runs in labelled.items()
    ]


def _group_metrics(runs: list[list[Sample]], layers: int) -> dict[str, Any]:
    own = [summarise(samples, layers, None, None, None) for samples in runs]
    return own[0] if len(own) == 1 else summarise_repeats(list(zip(runs, own, strict=True)), layers)


def run_entry(cell: Cell, reason: str | None = None) -> Run:
    """What the table is given of one cell; `reason` says why it has no metrics."""
    from skipbench.scoring.execute import waits_for_score

    config, folder = cell.config, cell.folder
    try:
        state = joined_record(cell)
    except SkipbenchError as error:  # the command prints it, too
        state = {"provenance": None, "metrics": None, "reason": str(error)}
    reason = reason or state["reason"]
    origin = dict(state["provenance"] or {})
    origin |= {
        "engine": origin.get("engine")
        or engine_text(config.engine.name, bool(config.engine.strict)),
        "date": str(origin.get("started", ""))[:10],
        **{name: origin.get("versions", {}).get(name) for name in ("torch", "transformers")},
        "dtype": str(config.model.dtype),
    }
    if config.model.sparsity != "none":
        calibration = config.model.calibration
        source = (
            f"up to {calibration.rows} rows of {config.dataset.name}, {calibration.tokens} "
            "tokens each at most"
        )
        origin |= {"sparsity": config.model.sparsity, "calibration": source}
    if state["metrics"] is None:
        reason = reason or "not run yet"
    elif waits_for_score(config.dataset.scorer, state["metrics"]):
        reason = "; ".join(filter(None, (reason, to_score(folder))))
    draft = None if state["metrics"] is None else drafted(state["samples"])
    about = {
        "id": folder.name,
        "metrics": state["metrics"],
        "drafted": draft,
        "label": config.label,
    }
    return config.names | about | {"reason": reason, "provenance": origin}
