"""One cell: its settings resolved, its folder, its run, its table."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.model import Model
from skipbench.config.run_config import RunConfig
from skipbench.console import logged, say, show_result
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.set_search import ensure_searched, search_command, search_trace
from skipbench.models.checks import check_access
from skipbench.report.cell import markdown_cell, render_cell
from skipbench.runs.files import set_aside, write_atomic
from skipbench.runs.fingerprint import (
    not_compared,
    other_latency,
    other_package,
    refuse_other,
)
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import CONDITIONS, config_hash, run_name
from skipbench.runs.run import Run, read_run
from skipbench.runs.state import read_status
from skipbench.scoring.execute import waits_for_score


@dataclass(frozen=True)
class Cell:
    """A cell whose skip set is known: its settings, and the folder that their hash names."""

    config: RunConfig
    folder: Path

    def state(self) -> str:
        """`done`, `running`, `failed`, `interrupted` as its record says, or `missing`."""
        return read_status(self.folder).state


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


def checked_run(cell: Cell) -> Run:
    """The run of a cell, checked to be of today's weights and method, and whole if it is done.

    Raises:
        SkipbenchError: it is of others, cannot be read, or lost samples.
    """
    run = read_run(cell.folder)
    if run.done:
        _ = run.samples  # refused where a sample is missing
        _check_rows(cell, run.provenance.rows_sha256)
    refuse_other(cell.folder, cell.config.model, cell.config.method)
    return run


def _check_rows(cell: Cell, before: str | None) -> None:
    """Raises SkipbenchError where the rows of a local file are others than those of the record;
    those of the hub are pinned by their revision.
    """
    from skipbench.data.rows import rows_hash

    config = cell.config
    path = config.dataset.node.get("path")
    if before is None or path is None or not Path(path).is_file():
        return
    if rows_hash(config.dataset.rows(config.limit)) != before:
        raise SkipbenchError(
            f"{cell.folder} was made with other rows (dataset.path={path}): changed since; "
            "fresh=true sets it aside and starts anew, results=FOLDER keeps both"
        )


def header(run: Run) -> dict[str, str]:
    """The head of a cell's table."""
    origin = run.origin
    named = {"model": run.model, "method": run.method, "dataset": run.dataset}
    named |= {k: getattr(origin, k) for k in ("engine", "dtype", "sparsity", "device", "mixed")}
    return {k: v for k, v in named.items() if v} | {"threads": str(run.setting("engine.threads"))}


def run_cell(
    config: RunConfig, print_table: bool = True, loaded: Any = None, load: Any = None
) -> Metrics | None:
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
    before = checked_run(cell)
    unknown = []
    if before.status.state != "missing":
        unknown = not_compared(before.provenance, config.model, config.method)
        if not before.done:
            known = before.provenance.conditions
            unknown += [f"other {name}" for name in CONDITIONS if name not in known]
    if unknown:
        say(
            f"{cell.folder}: begun by an earlier version; whether it is of {'; '.join(unknown)} is "
            "not known"
        )
    for what, changed in (
        (
            "measured by another version of skipbench's code",
            other_package(before.origin.package_sha256),
        ),
        ("decided by other latencies", other_latency(cell.folder, before.provenance)),
    ):
        if before.done and changed:
            say(f"{cell.folder}: {what}; fresh=true measures it anew")
    if not before.done:
        from skipbench.bench.load import load_model
        from skipbench.bench.preflight import preflight
        from skipbench.bench.run import run

        with logged():
            rows = preflight(config, cell.folder, loaded).rows
            say(str(cell.folder), "dim")
            run(config, cell.folder, rows, config.calibration_rows(), loaded, load or load_model)
    done = before if before.done else read_run(cell.folder)
    assert done.metrics is not None
    if not before.done:
        write_atomic(cell.folder / "table.md", markdown_cell(done.metrics, header(done)))
    if print_table:
        _show(done, done.metrics)
        if waits_for_score(config.dataset.scorer, done.metrics):
            say(to_score(cell.folder))
    if failed := done.metrics.lossless.failed:
        raise SkipbenchError(f"{failed} samples failed; see {cell.folder / 'status.json'}")
    return done.metrics


def _check_here(model: Model) -> None:
    """Raises SkipbenchError where a checkpoint is not on this machine and cannot be had."""
    check_access(model.path, model.revision, model.gated)
    if not Path(model.path).exists():
        from skipbench.models.outline import read_config

        read_config(model.path, model.revision)


def _run_repeats(config: RunConfig, print_table: bool) -> Metrics | None:
    """`run_cell` of a cell with several processes."""
    from skipbench.experiments.repeats import joined_run, run_repeats

    if config.dry_run:
        for one in config.repetitions():
            run_cell(one, print_table)
        return None
    run_repeats(config)
    run = joined_run(resolve_cell(config))
    if print_table and run.metrics:
        _show(run, run.metrics)
    return run.metrics


def _show(run: Run, metrics: Metrics) -> None:
    """Prints the table of a cell, or its record where a machine reads."""
    head = header(run)
    record = {"folder": str(run.folder), "label": run.label, **head}
    show_result(
        record | {"metrics": msgspec.to_builtins(metrics)}, lambda: render_cell(metrics, head)
    )


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
    show_result(msgspec.to_builtins(plain), lambda: text(found, plain))


def to_score(folder: Path) -> str:
    """The command for a run whose code is not executed yet."""
    return f"not scored yet: python -m skipbench score {folder}"
