"""A cell whose skip set is known: its run, whether it is done."""

import contextlib

from msgspec.structs import replace

from skipbench.bench.stored_sets import check_avoided, other_weights, with_stored_set
from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.run_config import RunConfig
from skipbench.console import say
from skipbench.data.rows import other_rows
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.set_search import search_trace
from skipbench.metrics.summary import first_of
from skipbench.runs.cell import Cell
from skipbench.runs.fingerprint import compare_identity
from skipbench.runs.run import Run, read_run
from skipbench.search.run import best_of_trace


def fill_skip_set(cell: Cell) -> None:
    """Fills in the stored skip set, or that of the cell's search. Raises NotHereError without one,
    or for other weights.
    """
    config = cell.config
    if config.search_dataset is not None:
        iterations = config.search.iterations
        if other := other_weights(trace := search_trace(config), config.model):
            raise NotHereError(other)
        if (skip := best_of_trace(trace, iterations)) is None:
            raise NotHereError(f"its search of {iterations} sets is not done yet")
        cell.composed = replace(config, method=config.method.but(skip=skip))
        return
    try:
        check_avoided(config)
        cell.composed = with_stored_set(config)
    except NotHereError as error:
        words = " ".join(f"{key}={name}" for key, name in config.names.items())
        raise NotHereError(
            f"{error}; or take method={DEFAULT_METHOD}, which needs none; or search one: python -m "
            f"skipbench search {words}, with your other settings"
        ) from error


def resolve_cell(config: RunConfig) -> Cell:
    """The cell of settings, with its skip set. Raises NotHereError as `fill_skip_set`."""
    fill_skip_set(cell := Cell(config))
    return cell


def checked_run(cell: Cell, tell: bool = False) -> Run:
    """The run of a cell whose skip set is known. Raises SkipbenchError for other weights, code or
    rows, or damage; `tell`: says what differs that is not refused.
    """
    config = cell.config
    run = first_of(read_run(cell.folder), config.limit)
    if done := run.has(config.limit):
        dataset, origin = config.dataset, run.provenance
        if dataset.may_change and other_rows(origin, dataset.rows(origin.prompts or config.limit)):
            place = dataset.node.get("path") or dataset.name
            raise SkipbenchError(
                f"{cell.folder} was made with other rows of {place}: "
                "changed since; fresh=true sets it aside and starts anew, results=FOLDER keeps both"
            )
    for text in compare_identity(cell.folder, config, done):
        if tell:
            say(f"{cell.folder}: {text}")
    return run


def is_done(cell: Cell, tell: bool = False) -> bool:
    """True if nothing is missing of a cell, whose `run` it reads; needs no torch. Arguments and
    errors of `checked_run`.
    """
    with contextlib.suppress(NotHereError):
        fill_skip_set(cell)
        cell.run = checked_run(cell, tell)
        return cell.run.has(cell.config.limit)
    return False
