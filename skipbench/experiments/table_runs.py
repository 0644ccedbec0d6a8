"""What a table is given of an experiment: one run per cell, from its record."""

from pathlib import Path
from typing import Any

from skipbench.config.catalog import paper_side
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import Cell, checked_run, resolve_cell, to_score
from skipbench.experiments.grid import PlannedCell
from skipbench.experiments.search_costs import search_costs
from skipbench.metrics.drafted import drafted
from skipbench.metrics.summary import summarise
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
    about = {"keys": one.keys, "stands_for": one.stands_for}
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
    if run["metrics"] is not None:
        run["metrics"] = run["metrics"] | search_costs(config, cell.folder)
    groups = paper_side(experiment).get("groups", {})
    missing = {key: group for key, group in groups.items() if key not in one.keys}
    split = [r for key, group in missing.items() for r in _by_group(run, cell.folder, key, group)]
    return split or [run]


def _by_group(run: Run, folder: Path, key: str, group: str) -> list[Run]:
    """The run once for each label of `group`, with the metrics of those samples."""
    layers = run["provenance"].get("layers")
    if run["metrics"] is None or layers is None:
        return []
    labelled: dict[str, list[Sample]] = {}
    for sample in read_samples(folder / "samples.jsonl"):
        if group in sample.groups:
            labelled.setdefault(sample.groups[group], []).append(sample)
    return [
        run
        | {"keys": run["keys"] | {key: label}, "drafted": drafted(samples)}
        | {"metrics": summarise(samples, layers, None, None, None)}
        for label, samples in labelled.items()
    ]


def run_entry(cell: Cell, reason: str | None = None) -> Run:
    """What the table is given of one cell; `reason` says why it has no metrics."""
    from skipbench.scoring.execute import waits_for_score

    config, folder = cell.config, cell.folder
    try:
        state = checked_run(cell)
    except SkipbenchError as error:  # the command prints it, too
        state, reason = {"provenance": None, "metrics": None}, reason or str(error)
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
    draft = None if state["metrics"] is None else drafted(read_samples(folder / "samples.jsonl"))
    about = {
        "id": folder.name,
        "metrics": state["metrics"],
        "drafted": draft,
        "label": config.label,
    }
    return config.names | about | {"reason": reason, "provenance": origin}
