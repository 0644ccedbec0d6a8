"""`run_rows`, what every command that decodes ends in: methods of a row take turns on prompts."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from skipbench.config.run_config import RunConfig
from skipbench.console import logged, say, show_result
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.resolve import checked_run, fill_skip_set, is_done
from skipbench.experiments.set_search import ensure_searched
from skipbench.experiments.table_runs import to_score
from skipbench.models.checks import check_access
from skipbench.report.columns import ALL
from skipbench.report.tables.formats import for_terminal, markdown
from skipbench.report.tables.runs import run_table
from skipbench.runs.cell import Cell, rows_of
from skipbench.runs.files import write_atomic
from skipbench.runs.measures import Metrics
from skipbench.runs.run import Run, read_run
from skipbench.runs.store import set_aside
from skipbench.scoring.scorers import waits_for_score

OF_ORIGIN = ("engine", "engine_asked", "dtype", "sparsity", "device")
"""What a line for machines says of where a cell ran."""


def deadline_of(minutes: float | None) -> float:
    """The time of `time.monotonic` at which so many minutes are over."""
    return math.inf if minutes is None else time.monotonic() + 60 * minutes


def run_rows(
    cells: Sequence[Cell],
    load: LastLoaded | None = None,
    deadline: float = math.inf,
    only_check: bool = False,
) -> None:
    """Runs what is missing of cells that have no error, row by row. Each has its `run` then, or the
    `error` that it ended with, which does not keep the others from theirs; both where samples
    failed, and neither in a dry run. From `deadline` on no prompt begins but the first; the runs
    are `interrupted` then. `only_check`: reads what is there, and runs nothing.
    """
    load, rows = load or LastLoaded(), rows_of([cell for cell in cells if cell.error is None])
    for number, row in enumerate(rows, 1):
        tell = len(rows) == 1 and not only_check
        todo = [cell for cell in row if not _over(cell, only_check, tell)]
        if len(rows) > 1 and not only_check:
            first, done = row[0].config, len(row) - len(todo)
            methods = ", ".join(dict.fromkeys(cell.config.method.name for cell in row))
            what = f"{first.model.name}, {first.dataset.name}: {methods}"
            what += f"; {done} of them done" if done else ""
            say(f"row {number} of {len(rows)}: {what}")
        if number > 1 and time.monotonic() > deadline:
            for cell in todo:
                cell.error = NotHereError("no time was left of minutes=; the same command goes on")
            continue
        ready = list[Cell]()
        for cell in todo:
            try:
                ready += [cell] if _prepare(cell, load, bool(ready)) else []
            except Exception as error:  # kept; the other cells do not depend on it
                cell.error = error
        if ready:
            _decode(ready, load, deadline)


def _over(cell: Cell, only_check: bool, tell: bool) -> bool:
    """True where nothing is to be done: the cell is done, or refused. `tell`: as of `is_done`."""
    try:
        # records that say it is done need neither torch nor the dataset
        anew = cell.config.dry_run or (cell.config.fresh and not only_check)
        return (not anew and is_done(cell, tell)) or only_check
    except Exception as error:  # kept; the other cells do not depend on it
        cell.error = error
        return True


def _prepare(cell: Cell, load: LastLoaded, checked: bool) -> bool:
    """True where a cell that is not done has something to decode; its skip set is filled in and its
    prompts are read then. `checked`: another cell of the row checked the model.
    """
    config = cell.config
    if config.search_dataset is not None and not ensure_searched(config, load):
        return False
    try:
        fill_skip_set(cell)
    except NotHereError:
        path, revision = config.model.path, config.model.revision
        check_access(path, revision, config.model.gated)  # a model that is not here comes first
        if not Path(path).exists():
            from skipbench.models.outline import read_config

            read_config(path, revision)
        raise
    if config.dry_run:
        from skipbench.experiments.dry_run import dry_run

        dry_run(cell)
        return False
    if not config.fresh and is_done(cell):  # of the set that its search ended with
        return False
    from skipbench.bench.load import preflight

    preflight(cell, checked or load.holds(config.model, config.engine))
    if config.fresh:  # only now: the old run stays where the new one is refused
        set_aside(cell.folder)
    return True


def _decode(cells: Sequence[Cell], load: LastLoaded, deadline: float) -> None:
    """Decodes what cells of a row lack; for those that are one run the most of its prompts."""
    from skipbench.bench.run import opened
    from skipbench.bench.turns import decode_missing

    arms: dict[Path, Cell] = {}
    for cell in cells:
        arms[cell.folder] = max(arms.get(cell.folder, cell), cell, key=lambda c: len(c.examples))
    try:
        with logged():
            for folder in arms:
                say(str(folder), "dim")
            with opened([*arms.values()], load) as runners:
                decode_missing(*runners, deadline=deadline)
    except Exception as error:  # kept; the next row does not depend on it
        for cell in cells:
            cell.error = error
        return
    errors = {folder: runner.error for folder, runner in zip(arms, runners, strict=True)}
    for folder in (folder for folder, error in errors.items() if error is None):
        if (run := read_run(folder)).metrics is not None:
            write_atomic(folder / "table.md", markdown(run_table(run, [ALL])))
    for cell in cells:
        cell.run, cell.error = None, errors[cell.folder]
        if cell.error is None:
            cell.run = checked_run(cell)
            if (metrics := cell.run.metrics) and (failed := metrics.lossless.failed):
                place = cell.folder / "status.json"
                cell.error = SkipbenchError(f"{failed} samples failed; see {place}")


def run_cell(config: RunConfig, print_table: bool = True) -> Metrics | None:
    """Runs what is missing of one cell, prints its table and returns its metrics; None for a dry
    run. Raises SkipbenchError for a value that cannot be used, or samples that failed.
    """
    run_rows([cell := Cell(config)])
    if print_table and cell.run is not None:
        show_run(cell.run)
    if cell.error is not None:
        raise cell.error
    return cell.run.metrics if cell.run else None


def show_run(run: Run, columns: Sequence[str] = ()) -> None:
    """Prints the table of a cell, if it is finished."""
    if run.metrics is None:
        if run.status.error:
            say(f"{run.folder}: {run.status.error}")
        return
    names = {kind: getattr(run, kind) for kind in ("label", "model", "method", "dataset")}
    origin = {key: getattr(run.origin, key) for key in OF_ORIGIN}
    origin["threads"] = run.setting("engine.threads")
    metrics = {"metrics": msgspec.to_builtins(run.metrics)}
    record = {"folder": str(run.folder), **names, **origin, **metrics}
    show_result(record, lambda: for_terminal(run_table(run, *([columns] if columns else []))))
    if run.folder and waits_for_score(run.setting("dataset.scorer"), run.metrics):
        say(to_score(run.folder))
