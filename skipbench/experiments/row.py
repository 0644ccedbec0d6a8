"""Rows: cells of one model, dataset and decoding, whose methods take turns on every prompt."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from skipbench.config.run_config import RunConfig
from skipbench.console import logged, say, show_result
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.resolve import (
    all_done,
    checked_run,
    compared_run,
    header,
    resolve_cell,
    to_score,
)
from skipbench.experiments.set_search import ensure_searched
from skipbench.models.checks import check_access
from skipbench.report.tables.formats import for_terminal, markdown
from skipbench.report.tables.runs import ALL, run_table
from skipbench.runs.cell import Cell
from skipbench.runs.files import write_atomic
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import hashed
from skipbench.runs.run import Run
from skipbench.runs.store import set_aside
from skipbench.scoring.scorers import waits_for_score


@dataclass(frozen=True)
class CellOutcome:
    """What became of a cell: its run, or the error that it ended with; neither in a dry run."""

    config: RunConfig
    run: Run | None = None
    error: Exception | None = None

    @property
    def failure(self) -> Exception | None:
        """Why the cell is not as it should be: its error, or samples that failed."""
        failed = self.run.metrics.lossless.failed if self.run and self.run.metrics else 0
        if self.run is None or not failed:
            return self.error
        folder = self.run.folder or Path()
        return SkipbenchError(f"{failed} samples failed; see {folder / 'status.json'}")


def row_key(config: RunConfig) -> str:
    """Hash of the settings that the cells of a row have in common."""
    return hashed([config.row_record(), str(config.results)])


def rows_of(configs: Sequence[RunConfig]) -> list[list[int]]:
    """Positions of the cells of each row, both in the order given."""
    rows: dict[str, list[int]] = {}
    for position, config in enumerate(configs):
        rows.setdefault(row_key(config), []).append(position)
    return list(rows.values())


def run_rows(configs: Sequence[RunConfig], only_check: bool = False) -> list[Exception | None]:
    """Runs what is missing of cells, row by row; returns for each why it has no sound run, if so.

    Args:
        only_check: reads what is there, and runs nothing.
    """
    errors: list[Exception | None] = [None] * len(configs)
    load = LastLoaded()
    for number, row in enumerate(rows := rows_of(configs), 1):
        todo = list[int]()
        for at in row:
            config = configs[at]
            try:
                # records that say it is done need neither torch nor the dataset
                anew = config.dry_run or (config.fresh and not only_check)
                if (anew or not all_done(config)) and not only_check:
                    todo.append(at)
            except Exception as error:  # returned; the other cells do not depend on it
                errors[at] = error
        if only_check:
            continue
        first, methods = configs[row[0]], ", ".join(configs[at].method.name for at in row)
        left = f"; {len(row) - len(todo)} of them done" if len(todo) < len(row) else ""
        title = f"{first.model.name}, {first.dataset.name}: {methods}{left}"
        say(f"row {number} of {len(rows)}: {title}")
        outcomes = run_row([configs[at] for at in todo], load) if todo else []
        for at, outcome in zip(todo, outcomes, strict=True):
            errors[at] = outcome.failure
    return errors


def run_cell(
    config: RunConfig, print_table: bool = True, load: LastLoaded | None = None
) -> Metrics | None:
    """Runs what is missing of one cell, prints its table and returns its metrics; None for a dry
    run. Raises SkipbenchError for a value that cannot be used, or samples that failed.

    Args:
        load: loads the model, unless it holds it; by default for this cell alone.
    """
    (outcome,) = run_row([config], load)
    if print_table and outcome.run is not None:
        show_run(outcome.run)
    if outcome.failure is not None:
        raise outcome.failure
    return outcome.run.metrics if outcome.run else None


def show_run(run: Run) -> None:
    """Prints the table of a cell, if it is finished."""
    if run.metrics is None:
        say(f"{run.folder}: {run.status.error}")
        return
    head, metrics = header(run), msgspec.to_builtins(run.metrics)
    engine = {"engine": run.origin.engine, "engine_asked": run.origin.engine_asked}
    record = {"folder": str(run.folder), "label": run.label, **head, **engine, "metrics": metrics}
    show_result(record, lambda: for_terminal(run_table(run)))
    scorer = run.setting("dataset.scorer")
    if run.folder and waits_for_score(scorer, run.metrics):
        say(to_score(run.folder))


def run_row(
    configs: Sequence[RunConfig], load: LastLoaded | None = None, deadline: float = math.inf
) -> list[CellOutcome]:
    """Runs what is missing of the cells of one row, which take turns on each prompt that they lack.
    A cell that cannot be run, or whose method fails, does not keep the others from theirs.

    Args:
        configs: of one `row_key`.
        load: loads the model, unless it holds it; by default for this row alone.
        deadline: time of `time.monotonic` from which on no prompt begins but the first; the runs
            are then `interrupted`.
    """
    load = load or LastLoaded()
    arms: dict[Path, Cell] = {}
    prepared = [_prepare(config, load, arms) for config in configs]
    measured = _measured(list(arms.values()), load, deadline) if arms else {}
    return [
        outcome if folder is None else replace(measured[folder], config=outcome.config)
        for outcome, folder in prepared
    ]


def _prepare(
    config: RunConfig, load: LastLoaded, arms: dict[Path, Cell]
) -> tuple[CellOutcome, Path | None]:
    """What became of a cell that has nothing to decode; or the folder of its arm, added to `arms`,
    in which cells that are one run have one.
    """
    try:
        run, arm = _ready(config, load, bool(arms))
    except Exception as error:  # returned; the other cells do not depend on it
        return CellOutcome(config, error=error), None
    if arm is not None:
        arms.setdefault(arm.folder, arm)
    return CellOutcome(config, run), arm.folder if arm else None


def _ready(config: RunConfig, load: LastLoaded, checked: bool) -> tuple[Run | None, Cell | None]:
    """The run of a cell that is done, or the arm that decodes it; neither in a dry run. `checked`:
    another cell checked the model.
    """
    if config.search_dataset is not None and not ensure_searched(config, load):
        return None, None
    try:
        cell = resolve_cell(config)
    except NotHereError:
        path, revision = config.model.path, config.model.revision
        check_access(path, revision, config.model.gated)  # a model that is not here comes first
        if not Path(path).exists():
            from skipbench.models.outline import read_config

            read_config(path, revision)
        raise
    if config.dry_run:
        from skipbench.experiments.dry_run import dry_run

        state = "missing" if config.fresh else checked_run(cell).status.state
        dry_run(cell.config, cell.folder, state)
        return None, None
    held = checked or load.holds(config)
    if not config.fresh and (run := _open_run(cell)).has(config.limit):
        return run, None
    from skipbench.bench.load import preflight

    cell.examples = preflight(cell.config, cell.folder, held).rows
    if config.fresh:  # only now: the old run stays where the new one is refused
        set_aside(cell.folder)
    return None, cell


def _measured(arms: Sequence[Cell], load: LastLoaded, deadline: float) -> dict[Path, CellOutcome]:
    """Decodes what the arms lack, and reads their runs; by folder."""
    from skipbench.bench.run import opened
    from skipbench.bench.turns import decode_missing

    try:
        with logged():
            for arm in arms:
                say(str(arm.folder), "dim")
            with opened(arms, load) as benches:
                decode_missing(*benches, deadline=deadline)
    except Exception as error:  # returned; the next row does not depend on it
        return {arm.folder: CellOutcome(arm.config, error=error) for arm in arms}
    outcomes = dict[Path, CellOutcome]()
    for arm, bench in zip(arms, benches, strict=True):
        run = checked_run(arm) if bench.error is None else None
        if run is not None and run.metrics is not None:
            write_atomic(arm.folder / "table.md", markdown(run_table(run, [ALL])))
        outcomes[arm.folder] = CellOutcome(arm.config, run, bench.error)
    return outcomes


def _open_run(cell: Cell) -> Run:
    """The run of a cell; prints what is not as today."""
    run, notes = compared_run(cell)
    for text in notes:
        say(f"{cell.folder}: {text}")
    return run
