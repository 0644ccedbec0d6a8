"""`table`: runs what is missing of experiments, then writes their tables from the records alone."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from skipbench.cli.plan import show_plan
from skipbench.config.catalog import paper_side
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import all_done, resolve_cell, run_cell
from skipbench.experiments.grid import PlannedCell
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.plan import (
    Request,
    budgeted,
    composed,
    experiment_names,
    file_name,
    parse_request,
    planned_cells,
    scale_of,
)
from skipbench.experiments.table_runs import table_runs
from skipbench.report.compared import ranked
from skipbench.report.console import complain, say, show
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.formats import write
from skipbench.report.tables.markdown import for_terminal
from skipbench.report.tables.model import Table
from skipbench.report.tables.stored import read_table, stored_table, summary, would_lose
from skipbench.runs.files import write_atomic
from skipbench.runs.run import Run

FLAGS = ("--render-only", "--force", "--plan", "--json")


def run(arguments: list[str]) -> None:
    """Runs and writes results/tables/NAME.*, a paper's as NAME.SCALE.*; `--render-only` only
    writes. A NAME.json is rendered again from itself.

    A table that would lose measured values is shown, and written only with `--force`.

    Raises:
        SkipbenchError: no such experiment, scale or key.
        SystemExit: 1, when cells failed or a table was not written; what failed is printed.
    """
    names = [a for a in arguments if "=" not in a and not a.startswith("-")]
    if names and all(name.endswith(".json") for name in names):
        for name in names:
            _write(Path(name).with_suffix(""), read_table(Path(name)))
        return
    features = feature_tables()
    known = sorted([*experiment_names(), *features])
    request = parse_request(arguments, "table", known, FLAGS)
    if "--plan" in request.flags:
        run_names = [name for name in request.names if name not in features]
        show_plan(run_names, request, request.hardware)
        return
    failed, load = [], LastLoaded()
    quiet = "--json" in request.flags
    for name in request.names:
        if name in features:
            results = next(
                (o.partition("=")[2] for o in request.overrides if o.startswith("results=")),
                "results",
            )
            table = feature_table(features[name])
            as_json = json.dumps(list(table.records)) if quiet else None
            _write(Path(results) / "tables" / name, table, as_json=as_json)
        else:
            failed += _experiment(name, request, load)
    for text in failed:
        complain(f"failed: {text}")
    if failed:
        sys.exit(1)


def _experiment(name: str, request: Request, load: LastLoaded) -> list[str]:
    """Runs and writes one experiment. Returns what failed."""
    render_only = "--render-only" in request.flags
    scale = scale_of(name, request.scale, without_torch=render_only)
    planned = planned_cells(name, request, scale)
    if not planned:
        say(f"{name} has none of the models {', '.join(request.models)}")
        return []
    cells = budgeted(composed(name, planned), request.budget)
    reasons: dict[tuple[str, ...], str] = {}
    failed = []
    for number, (cell, config) in enumerate(cells, 1):
        if not render_only:
            say(f"{name}, cell {number} of {len(cells)}: {cell.name}")
        try:
            _run(config, render_only, load)
            if request.budget and config.limit and resolve_cell(config).state() == "done":
                chosen = f"{config.limit} prompts, chosen by --budget {request.budget}"
                reasons[tuple(cell.words(name))] = chosen
        except NotHereError as error:
            reasons[tuple(cell.words(name))] = str(error)
        except Exception as error:  # the next cells do not depend on it
            reason = (
                str(error)
                if isinstance(error, SkipbenchError)
                else f"{type(error).__name__}: {error}"
            )
            reasons[tuple(cell.words(name))] = reason
            failed.append(f"{name}, {cell.name}: {reason}")
    if not any(config.dry_run for _, config in cells):
        failed += _write_table(name, scale, planned, cells, reasons, request)
    return failed


def _run(config: RunConfig, render_only: bool, load: LastLoaded) -> None:
    """Runs a cell, unless its records say that it is done: that needs neither torch nor the
    dataset.

    Args:
        render_only: checks the records and runs nothing.
    """
    done = (render_only or not config.fresh) and all_done(config)
    if not render_only and (config.dry_run or not done):
        run_cell(config, print_table=False, load=load)


def _write_table(
    name: str,
    scale: str,
    planned: list[PlannedCell],
    cells: list[tuple[PlannedCell, RunConfig]],
    reasons: dict[tuple[str, ...], str],
    request: Request,
) -> list[str]:
    """Returns why the table is not written, if it is not."""
    configs = {tuple(cell.words(name)): config for cell, config in cells}
    runs: list[Run] = []
    # one that is not run may have the overrides of one that is: `run` tells them apart
    for cell in planned:
        key = tuple(cell.words(name))
        runs += table_runs(
            name, cell, configs[key] if cell.run else None, reasons.get(key) if cell.run else None
        )
    if paper_side(name).get("ranked"):
        whole = ranked([run for run in runs if not run.group])
        runs = [*whole, *(run for run in runs if run.group)]
    results = next((config.results for _, config in cells), Path("results"))
    stored = summary(name, scale, runs, request.columns)
    as_json = stored if "--json" in request.flags else None
    path = results / "tables" / file_name(name, scale)
    refused = would_lose(path.with_name(f"{path.name}.json"), stored)
    if refused is not None and "--force" not in request.flags:
        _show(stored_table(stored), as_json)
        return [refused]
    _write(path, stored_table(stored), {"json": stored}, as_json)
    return []


def _write(
    path: Path, table: Table, more: Mapping[str, str] | None = None, as_json: str | None = None
) -> None:
    """Writes a table in every format, and the texts of `more` by suffix, beside `path`; shows it,
    or `as_json` in its place.
    """
    formats = {**write(table), **(more or {})}
    for suffix, text in formats.items():
        write_atomic(path.with_name(f"{path.name}.{suffix}"), text)
    _show(table, as_json)
    say(f"written: {path}.{', .'.join(formats)}")


def _show(table: Table, as_json: str | None) -> None:
    show(for_terminal(table) if as_json is None else as_json.rstrip())
