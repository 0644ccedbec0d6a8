"""A cell whose skip set is known: its folder, its run, whether it is done."""

import contextlib
import dataclasses
from pathlib import Path

from skipbench.bench.stored_sets import check_avoided, other_weights, with_stored_set
from skipbench.config.catalog import DEFAULT_METHOD
from skipbench.config.run_config import RunConfig
from skipbench.data.rows import other_rows
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.set_search import search_trace
from skipbench.metrics.summary import first_of
from skipbench.runs.cell import Cell
from skipbench.runs.fingerprint import compare_identity
from skipbench.runs.run import Run, read_run
from skipbench.search.run import best_of_trace


def resolve_cell(config: RunConfig) -> Cell:
    """Fills in the stored skip set. Raises NotHereError without one, or for other weights."""
    if config.search_dataset is not None:
        iterations = config.search.iterations
        if other := other_weights(trace := search_trace(config), config.model):
            raise NotHereError(other)
        if (skip := best_of_trace(trace, iterations)) is None:
            raise NotHereError(f"its search of {iterations} sets is not done yet")
        return Cell(dataclasses.replace(config, method=config.method.but(skip=skip)))
    try:
        check_avoided(config)
        return Cell(with_stored_set(config))
    except NotHereError as error:
        cell = " ".join(f"{key}={name}" for key, name in config.names.items())
        raise NotHereError(
            f"{error}; or take method={DEFAULT_METHOD}, which needs none; or search one: python -m "
            f"skipbench search {cell}, with your other settings"
        ) from error


def checked_run(cell: Cell) -> Run:
    """The run of a cell. Raises SkipbenchError for other weights, code or rows, or damage."""
    return compared_run(cell)[0]


def compared_run(cell: Cell) -> tuple[Run, list[str]]:
    """`checked_run`, and what differs that is not refused."""
    config = cell.config
    run = first_of(read_run(cell.folder), config.limit)
    if done := run.has(config.limit):
        path = config.dataset.path  # rows of the hub are pinned by their revision
        local = path is not None and Path(path).is_file()
        if local and other_rows(run.provenance, config.dataset.rows(config.limit)):
            raise SkipbenchError(
                f"{cell.folder} was made with other rows (dataset.path={path}): changed since; "
                "fresh=true sets it aside and starts anew, results=FOLDER keeps both"
            )
    return run, compare_identity(cell.folder, config, done)


def header(run: Run) -> dict[str, str]:
    """The head of a cell's table; an engine in place of another one comes first."""
    origin = run.origin
    named: dict[str, str | None] = {"engine": origin.engines} if origin.engine_asked else {}
    named |= {"model": run.model, "method": run.method, "dataset": run.dataset}
    named |= {"engine": origin.engines}
    named |= {k: getattr(origin, k) for k in ("dtype", "sparsity", "device")}
    return {k: v for k, v in named.items() if v} | {"threads": str(run.setting("engine.threads"))}


def all_done(config: RunConfig) -> bool:
    """True if the run of a cell is done; needs no torch. Raises as `checked_run`."""
    with contextlib.suppress(NotHereError):
        return checked_run(resolve_cell(config)).has(config.limit)
    return False


def to_score(folder: Path) -> str:
    """The command for a run whose code is not executed yet."""
    return f"not scored yet: python -m skipbench score {folder}"
