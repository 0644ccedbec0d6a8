"""Rows: cells of one model, dataset and decoding, whose methods take turns on every prompt."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skipbench.config.catalog import cell_command
from skipbench.config.run_config import RunConfig
from skipbench.console import logged, say, show_result
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import (
    Cell,
    all_done,
    check_shard,
    checked_run,
    header,
    is_decoded,
    is_done,
    join_shards,
    joined_run,
    resolve_cell,
    to_score,
)
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.set_search import ensure_searched
from skipbench.models.checks import check_access
from skipbench.report.detail import markdown_cell, render_cell
from skipbench.runs.files import write_atomic
from skipbench.runs.fingerprint import not_compared, other_latency, other_package
from skipbench.runs.lock import set_aside
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import COMPUTING, CONDITIONS, hashed
from skipbench.runs.run import Run, read_run
from skipbench.scoring.scorers import waits_for_score

if TYPE_CHECKING:  # a row of finished cells needs no torch
    from skipbench.bench.run import ReadyArm

OF_AN_ARM = ("method", "limit")
"""Settings in which the arms of a row may differ; of prompts each takes the first `limit`."""
CELL_FAILED = 1  # exit status of a process in which a cell failed and the others went on
Outcome = Run | Exception | None  # of a cell: its run, why there is none, or nothing in a dry run


def row_key(config: RunConfig) -> str:
    """Hash of the settings that the cells of a row have in common."""
    shared = {k: v for k, v in config.record().items() if k not in OF_AN_ARM}
    return hashed([shared, config.repeats, config.shard, str(config.results)])


def rows_of(configs: Sequence[RunConfig]) -> list[list[int]]:
    """Positions of the cells of each row, both in the order given."""
    rows: dict[str, list[int]] = {}
    for position, config in enumerate(configs):
        rows.setdefault(row_key(config), []).append(position)
    return list(rows.values())


def run_rows(
    configs: Sequence[RunConfig],
    load: LastLoaded,
    tell: Callable[[str], None],
    only_check: bool = False,
) -> list[Exception | None]:
    """Runs what is missing of cells, row by row; returns for each why it has no sound run, if so.

    Args:
        load: loads the models.
        tell: gets a line per row.
        only_check: reads what is there, and runs nothing.
    """
    errors: list[Exception | None] = [None] * len(configs)
    for number, row in enumerate(rows := rows_of(configs), 1):
        todo = list[int]()
        for at in row:
            try:
                # records that say it is done need neither torch nor the dataset
                anew = configs[at].dry_run or (configs[at].fresh and not only_check)
                if (anew or not all_done(configs[at])) and not only_check:
                    todo.append(at)
            except Exception as error:  # returned; the other cells do not depend on it
                errors[at] = error
        if only_check:
            continue
        first, methods = configs[row[0]], ", ".join(configs[at].method.name for at in row)
        left = f"; {len(row) - len(todo)} of them done" if len(todo) < len(row) else ""
        title = f"{first.model.name}, {first.dataset.name}: {methods}{left}"
        tell(f"row {number} of {len(rows)}: {title}")
        outcomes = run_row([configs[at] for at in todo], load) if todo else []
        for at, outcome in zip(todo, outcomes, strict=True):
            errors[at] = failure_of(outcome)
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
    if outcome is None:
        return None
    if isinstance(outcome, Exception):
        raise outcome
    if print_table:
        show_run(outcome)
    if (failed := failure_of(outcome)) is not None:
        raise failed
    return outcome.metrics


def show_run(run: Run) -> None:
    """Prints the table of a cell, if it is finished."""
    if run.metrics is None:
        say(f"{run.folder}: {run.status.error}")
        return
    head, metrics = header(run), msgspec.to_builtins(run.metrics)
    record = {"folder": str(run.folder), "label": run.label, **head, "metrics": metrics}
    show_result(record, lambda: render_cell(run.measured, head))
    scorer = run.setting("dataset.scorer")
    if run.folder and waits_for_score(scorer, run.metrics):
        say(to_score(run.folder))


def failure_of(outcome: "Outcome") -> Exception | None:
    """Why a cell is not as it should be: an error, or samples that failed."""
    if not isinstance(outcome, Run):
        return outcome
    failed = outcome.metrics.lossless.failed if outcome.metrics else 0
    folder = outcome.folder or Path()
    text = f"{failed} samples failed; see {folder / 'status.json'}"
    return SkipbenchError(text) if failed else None


def run_row(configs: Sequence[RunConfig], load: LastLoaded | None = None) -> list[Outcome]:
    """Runs what is missing of the cells of one row, which take turns on each prompt that they lack.
    A cell that cannot be run, or whose method fails, does not keep the others from theirs.

    Args:
        configs: of one `row_key`.
        load: loads the model, unless it holds it; by default for this row alone.
    """
    if configs[0].repeats != 1:
        return _run_repeats(configs)
    load = load or LastLoaded()
    prepared = list[Outcome | Path]()
    ready: dict[Path, ReadyArm] = {}
    for config in configs:
        try:
            found = _prepared(config, load, bool(ready))
            if found is not None and not isinstance(found, Run):
                ready.setdefault(found.folder, found)
                prepared.append(found.folder)
            else:
                prepared.append(found)
        except Exception as error:  # returned; the other cells do not depend on it
            prepared.append(error)
    measured = _measured(list(ready.values()), load) if ready else []
    of_folder = dict(zip(ready, measured, strict=True))
    return [of_folder[one] if isinstance(one, Path) else one for one in prepared]


def _prepared(config: RunConfig, load: LastLoaded, checked: bool) -> "Run | ReadyArm | None":
    """`_ready`. Raises SkipbenchError with all that this machine lacks for the model."""
    try:
        return _ready(config, load, checked)
    except SkipbenchError as error:
        from skipbench.experiments.dry_run import refused

        raise refused(config, error) from error


def _ready(config: RunConfig, load: LastLoaded, checked: bool) -> "Run | ReadyArm | None":
    """A cell ready to decode, or its run if done; `checked`: another cell checked the model."""
    if config.search_dataset is not None and not ensure_searched(config, load):
        return None
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
        return None
    held = checked or load.holds(config)
    if config.shard is not None:
        check_shard(config)
    if (run := _open_run(cell, held)).done:
        return run
    from skipbench.bench.load import preflight
    from skipbench.bench.run import ReadyArm

    rows = preflight(cell.config, cell.folder, held).rows
    return run if is_decoded(run, rows, config) else ReadyArm(cell.config, cell.folder, rows)


def _measured(arms: "Sequence[ReadyArm]", load: LastLoaded) -> list[Outcome]:
    """Decodes what the arms lack, and reads their runs."""
    from skipbench.bench.run import opened
    from skipbench.bench.turns import decode_missing

    try:
        with logged():
            for arm in arms:
                say(str(arm.folder), "dim")
            with opened(arms, load) as benches:
                decode_missing(*benches)
    except Exception as error:  # returned; the next row does not depend on it
        return [error] * len(arms)
    outcomes = list[Outcome]()
    for arm, bench in zip(arms, benches, strict=True):
        if bench.error is not None:
            outcomes.append(bench.error)
            continue
        run = read_run(arm.folder)
        if run.metrics is not None:  # a shard has none
            write_atomic(arm.folder / "table.md", markdown_cell(run.metrics, header(run)))
        outcomes.append(run)
    return outcomes


def _open_run(cell: Cell, held: bool) -> Run:
    """The run of a cell, set aside with `fresh=true`; prints what is not known to be as today."""
    config = cell.config
    if config.fresh:
        from skipbench.bench.load import preflight

        preflight(config, cell.folder, held)
        for one in (cell, *cell.shards):
            set_aside(one.folder)
    elif config.shard is not None and (whole := checked_run(cell.whole)).done:
        return whole
    else:
        join_shards(cell)
    run = checked_run(cell)
    if run.status.state == "missing":
        return run
    origin, anew = run.provenance, "fresh=true measures it anew"
    unknown = not_compared(origin, config)
    if not run.done:
        lacking = [name for name in CONDITIONS if name not in (*COMPUTING, *origin.conditions)]
        unknown += [f"other {name}" for name in lacking]
    if text := "; ".join(unknown):
        say(f"{cell.folder}: begun by an earlier version; whether it is of {text} is not known")
    if run.done and other_package(origin.package_sha256, config.engine.name):
        say(f"{cell.folder}: measured by another version of skipbench's code; {anew}")
    if run.done and other_latency(cell.folder, origin):
        say(f"{cell.folder}: decided by other latencies; {anew}")
    return run


def _run_repeats(configs: Sequence[RunConfig]) -> list[Outcome]:
    """`run_row` with several processes, one after another; each runs the whole row."""
    processes = list(zip(*(config.repetitions() for config in configs), strict=True))
    if configs[0].dry_run:
        dry = [run_row(row) for row in processes]
        return dry[0]
    failed: SkipbenchError | None = None
    for number, whole in enumerate(processes, 1):
        row = [one for one in whole if one.fresh or not is_done(one)]
        if not row:
            continue
        say(name := f"process {number} of {len(processes)}", "dim")
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as manifest:
            manifest.write(json.dumps({"configs": [one.to_dict() for one in row]}) + "\n")
            manifest.flush()
            code = subprocess.run(cell_command(manifest.name, "0"), check=False).returncode
        if code:
            reason = "its reason stands above; the same command goes on"
            failed = SkipbenchError(f"{name} ended with exit status {code}; {reason}")
            if code != CELL_FAILED or len(configs) == 1:
                break
    return [_joined(config, failed) for config in configs]


def _joined(config: RunConfig, failed: SkipbenchError | None) -> Outcome:
    """The run of a cell with several processes; `failed` if a process failed and it is not done."""
    if failed is not None and not is_done(config):
        return failed
    try:
        return joined_run(resolve_cell(config))
    except SkipbenchError as error:
        return error
