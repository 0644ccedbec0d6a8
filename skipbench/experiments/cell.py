"""One cell: its settings resolved, its folder, its run, its table."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.model import Model
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.set_search import ensure_searched, search_command, search_trace
from skipbench.models.checks import check_access
from skipbench.report.cell import markdown_cell, render_cell
from skipbench.report.console import logged, say, show_result
from skipbench.runs.files import set_aside, write_atomic
from skipbench.runs.fingerprint import (
    not_compared,
    other_latency,
    other_package,
    refuse_other,
)
from skipbench.runs.provenance import CONDITIONS, conditions, config_hash, engine_text, run_name
from skipbench.runs.store import load_run, read_samples
from skipbench.scoring.execute import waits_for_score


@dataclass(frozen=True)
class Cell:
    """A cell whose skip set is known: its settings, and the folder that their hash names."""

    config: RunConfig
    folder: Path

    def state(self) -> str:
        """`done`, `running`, `failed`, `interrupted` as its record says, or `missing`."""
        return str((load_run(self.folder)["status"] or {"state": "missing"})["state"])


def resolve_cell(config: RunConfig) -> Cell:
    """Fills in the stored skip set, and names the run's folder by the hash of all settings.

    Raises:
        NotHereError: no set is stored, or the cell's own search is not done or of other weights.
    """
    from skipbench.bench.stored_sets import best_of_trace, other_weights, resolve

    method = config.method
    if config.search_dataset is not None:
        if other := other_weights(search_trace(config), config.model):
            raise NotHereError(other)
        skip = best_of_trace(search_trace(config), config.search.iterations)
        if skip is None:
            raise NotHereError(f"its search of {config.search.iterations} sets is not done yet")
        method = method.with_skip(skip)
    elif method.skip is not None:
        try:
            method = method.with_skip(
                resolve(method.skip, config.model, method.name, config.results)
            )
        except NotHereError as error:
            raise NotHereError(
                f"{error}; or take method={DEFAULT_METHOD}, which needs none; or search one: "
                f"{search_command(config)}"
            ) from error
    return named_cell(dataclasses.replace(config, method=method))


def named_cell(config: RunConfig) -> Cell:
    """The cell of a configuration whose skip set is resolved."""
    names = [config.model.name, config.method.name, config.dataset.name]
    return Cell(config, config.results / "runs" / run_name(names, config_hash(config.record())))


def checked_run(cell: Cell) -> dict[str, Any]:
    """The record of a cell as `load_run` gives it, checked to be of today's weights and method, and
    whole if it is done.

    Raises:
        SkipbenchError: it is of others, cannot be read, or lost samples.
    """
    state = load_run(cell.folder)
    if (state["status"] or {}).get("state") == "done":
        read_samples(cell.folder / "samples.jsonl")
        _check_rows(cell, state["provenance"] or {})
    refuse_other(cell.folder, cell.config.model, cell.config.method)
    return state


def _check_rows(cell: Cell, provenance: dict[str, Any]) -> None:
    """Raises SkipbenchError where the rows of a local file are others than those of the record;
    those of the hub are pinned by their revision.
    """
    from skipbench.data.rows import rows_hash

    config, before = cell.config, provenance.get("rows_sha256")
    path = config.dataset.node.get("path")
    if before is None or path is None or not Path(path).is_file():
        return
    if rows_hash(config.dataset.rows(config.limit)) != before:
        raise SkipbenchError(
            f"{cell.folder} was made with other rows (dataset.path={path}): changed since; "
            "fresh=true sets it aside and starts anew, results=FOLDER keeps both"
        )


def header(settings: dict[str, Any], provenance: dict[str, Any] | None) -> dict[str, str]:
    """The head of a cell's table, from its record."""
    origin, model, engine = provenance or {}, settings["model"], settings["engine"]
    return {
        **{k: settings[k]["name"] for k in ("model", "method", "dataset")},
        "engine": origin.get("engine") or engine_text(engine["name"], bool(engine.get("strict"))),
        "dtype": model["dtype"],
        **({"sparsity": model["sparsity"]} if "sparsity" in model else {}),
        "device": origin.get("device", model["device"]),
        "threads": str(engine["threads"]),
        **({"mixed": origin["mixed"]} if origin.get("mixed") else {}),
    }


def run_cell(
    config: RunConfig, print_table: bool = True, loaded: Any = None, load: Any = None
) -> dict[str, Any] | None:
    """Runs what is missing of one cell and prints its table.

    Args:
        loaded, load: the model, or what loads it, as `bench.run.run` takes them.

    Returns:
        Its metrics; `None` for a dry run.

    Raises:
        SkipbenchError: a value that cannot be used, or samples that failed.
    """
    if config.repeats != 1:
        return _run_repeats(config, print_table)
    if config.search_dataset is not None and not ensure_searched(config, load):
        return None
    try:
        cell = resolve_cell(config)
    except NotHereError:
        _check_here(config.model)  # comes first
        raise
    config = cell.config
    if config.dry_run:
        _dry_run(cell)
        return None
    if config.fresh:
        _check_first(cell, loaded)
        set_aside(cell.folder)
    state = checked_run(cell)
    unknown = []
    if state["provenance"]:
        unknown = not_compared(state["provenance"], config.model, config.method)
        if cell.state() != "done":
            unknown += [
                f"other {k}" for k in CONDITIONS if k not in conditions(state["provenance"])
            ]
    if unknown:
        say(
            f"{cell.folder}: begun by an earlier version; whether it is of {'; '.join(unknown)} is "
            "not known"
        )
    metrics: dict[str, Any] | None = state["metrics"] if cell.state() == "done" else None
    for what, changed in (
        ("measured by another version of skipbench's code", other_package(state["provenance"])),
        ("decided by other latencies", other_latency(cell.folder, state["provenance"])),
    ):
        if metrics is not None and changed:
            say(f"{cell.folder}: {what}; fresh=true measures it anew")
    if metrics is None:
        from skipbench.bench.load import load_model
        from skipbench.bench.preflight import preflight
        from skipbench.bench.run import run

        with logged():
            rows = preflight(config, cell.folder, loaded).rows
            say(str(cell.folder), "dim")
            calibration = config.calibration_rows()
            metrics = run(config, cell.folder, rows, calibration, loaded, load or load_model)
        head = header(config.record(), load_run(cell.folder)["provenance"])
        write_atomic(cell.folder / "table.md", markdown_cell(metrics, head))
    if print_table:
        _show(cell, metrics, load_run(cell.folder)["provenance"])
        if waits_for_score(config.dataset.scorer, metrics):
            say(to_score(cell.folder))
    if failed := metrics["lossless"]["failed"]:
        raise SkipbenchError(f"{failed} samples failed; see {cell.folder / 'status.json'}")
    return metrics


def _check_here(model: Model) -> None:
    """Raises SkipbenchError where a checkpoint is not on this machine and cannot be had."""
    check_access(model.path, model.revision, model.gated)
    if not Path(model.path).exists():
        from skipbench.models.outline import read_config

        read_config(model.path, model.revision)


def _run_repeats(config: RunConfig, print_table: bool) -> dict[str, Any] | None:
    """`run_cell` of a cell with several processes."""
    from skipbench.experiments.repeats import joined_record, run_repeats

    if config.dry_run:
        for one in config.repetitions():
            run_cell(one, print_table)
        return None
    run_repeats(config)
    record = joined_record(resolve_cell(config))
    metrics: dict[str, Any] = record["metrics"]
    if print_table:
        _show(resolve_cell(config), metrics, record["provenance"])
    return metrics


def _show(cell: Cell, metrics: dict[str, Any], provenance: dict[str, Any] | None) -> None:
    """Prints the table of a cell, or its record where a machine reads."""
    head = header(cell.config.record(), provenance)
    record = {"folder": str(cell.folder), "label": cell.config.label, **head, "metrics": metrics}
    show_result(record, lambda: render_cell(metrics, head))


def _check_first(cell: Cell, loaded: Any) -> None:
    """Refuses what a run would refuse, before an old record goes."""
    from skipbench.bench.preflight import preflight

    preflight(cell.config, cell.folder, loaded)


def _dry_run(cell: Cell) -> None:
    """Checks a cell as its run would, and prints what that would do."""
    from skipbench.bench.preflight import preflight
    from skipbench.experiments.dry_run import describe, text

    config, state = cell.config, "missing"
    if not config.fresh:
        checked_run(cell)
        state = cell.state()
    found = preflight(config, cell.folder)
    plain = describe(config, found, cell.folder, state)
    show_result(plain, lambda: text(found, plain))


def to_score(folder: Path) -> str:
    """The command for a run whose code is not executed yet."""
    return f"not scored yet: python -m skipbench score {folder}"
