"""`table`: runs what is missing of experiments, then writes their tables from the records alone."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from skipbench.cli.commands import Table
from skipbench.cli.experiments import request_of, show_plan
from skipbench.cli.parser import results_of
from skipbench.config.catalog import choices, paper_side
from skipbench.config.run_config import RunConfig
from skipbench.console import complain, say, show
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import all_done, resolve_cell, run_cell
from skipbench.experiments.grid import PlannedCell
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.plan import (
    Request,
    budgeted,
    composed,
    file_name,
    planned_cells,
    scale_of,
)
from skipbench.experiments.table_runs import table_runs
from skipbench.report.compared import ranked
from skipbench.report.tables import model
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.formats import write
from skipbench.report.tables.markdown import for_terminal
from skipbench.report.tables.stored import read_table, stored_table, summary, would_lose
from skipbench.runs.files import write_atomic
from skipbench.runs.run import Run


def run_table(asked: Table) -> None:
    """Runs what is missing and writes results/tables/NAME.*, a paper's as NAME.SCALE.*. A NAME.json
    is rendered again from itself.

    A table that would lose measured values is shown, and written only with `--force`.
    """
    if asked.words and all(name.endswith(".json") for name in asked.words):
        for name in asked.words:
            table = read_table(Path(name))
            write_table(Path(name).with_suffix(""), table, for_terminal(table))
        return
    features = feature_tables()
    request = request_of(asked, sorted([*choices("experiment"), *features]))
    if asked.plan:
        show_plan(replace(request, names=[n for n in request.names if n not in features]))
        return
    failed, load = list[str](), LastLoaded()
    for name in request.names:
        if name not in features:
            failed += _experiment(name, asked, request, load)
            continue
        table = feature_table(features[name])
        text = json.dumps(list(table.records)) if asked.json else for_terminal(table)
        write_table(results_of(asked.settings) / "tables" / name, table, text)
    for text in failed:
        complain(f"failed: {text}")
    if failed:
        sys.exit(1)


def _experiment(name: str, asked: Table, request: Request, load: LastLoaded) -> list[str]:
    """Runs and writes one experiment. Returns what failed."""
    render_only = asked.render_only
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
        key = tuple(cell.words(name))
        try:
            # records that say it is done need neither torch nor the dataset
            done = (render_only or not config.fresh) and all_done(config)
            if not render_only and (config.dry_run or not done):
                run_cell(config, print_table=False, load=load)
            if request.budget and config.limit and resolve_cell(config).state() == "done":
                reasons[key] = f"{config.limit} prompts, chosen by --budget {request.budget}"
        except Exception as error:  # the next cells do not depend on it
            known = isinstance(error, SkipbenchError)
            reasons[key] = str(error) if known else f"{type(error).__name__}: {error}"
            if not isinstance(error, NotHereError):
                failed.append(f"{name}, {cell.name}: {reasons[key]}")
    if not any(config.dry_run for _, config in cells):
        failed += _write_table(name, scale, planned, cells, reasons, asked)
    return failed


def _write_table(
    name: str,
    scale: str,
    planned: list[PlannedCell],
    cells: list[tuple[PlannedCell, RunConfig]],
    reasons: dict[tuple[str, ...], str],
    asked: Table,
) -> list[str]:
    """Returns why the table is not written, if it is not."""
    configs = {tuple(cell.words(name)): config for cell, config in cells}
    runs: list[Run] = []
    # one that is not run may have the overrides of one that is: `run` tells them apart
    for cell in planned:
        key = tuple(cell.words(name)) if cell.run else ()
        runs += table_runs(name, cell, configs.get(key), reasons.get(key))
    if paper_side(name).get("ranked"):
        whole = ranked([run for run in runs if not run.group])
        runs = [*whole, *(run for run in runs if run.group)]
    results = next((config.results for _, config in cells), Path("results"))
    stored = summary(name, scale, runs, asked.columns)
    table = stored_table(stored)
    text = stored.rstrip() if asked.json else for_terminal(table)
    path = results / "tables" / file_name(name, scale)
    refused = would_lose(path.with_name(f"{path.name}.json"), stored)
    if refused is not None and not asked.force:
        show(text)
        return [refused]
    write_table(path, table, text, {"json": stored})
    return []


def write_table(
    path: Path, table: model.Table, text: str, more: Mapping[str, str] | None = None
) -> None:
    """Writes a table in all formats, and the texts of `more` by suffix, to `path`; shows `text`."""
    formats = {**write(table), **(more or {})}
    for suffix, content in formats.items():
        write_atomic(path.with_name(f"{path.name}.{suffix}"), content)
    if text:
        show(text)
    say(f"written: {path}.{', .'.join(formats)}")
