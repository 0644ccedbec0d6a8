"""`table`: runs what is missing of experiments, then writes their tables from the records alone."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from skipbench.cli.commands import Table
from skipbench.cli.compare import possible, write_table
from skipbench.cli.experiments import cells_asked
from skipbench.cli.parser import results_of
from skipbench.cli.plan import show_plan
from skipbench.config.catalog import choices, experiment_of
from skipbench.console import complain, say, show
from skipbench.errors import NotHereError, reason_of
from skipbench.experiments.plan import file_name, points_of
from skipbench.experiments.row import deadline_of, run_rows
from skipbench.experiments.table_runs import table_runs
from skipbench.report.compared import check_over, ranked
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.formats import check_formats, for_terminal
from skipbench.report.tables.stored import (
    Summary,
    check_table,
    published_beside,
    read_summary,
    table_of,
)
from skipbench.runs.cell import Cell
from skipbench.runs.reading import readable


def run_table(asked: Table) -> None:
    """Runs what is missing and writes results/tables/NAME.*, a paper's as NAME.SCALE.*. A NAME.json
    is rendered again from itself, with `columns` or `over` into the `formats` that are given.
    """
    check_formats(asked.formats)
    if asked.words and all(name.endswith(".json") for name in asked.words):
        for name in asked.words:
            with readable(Path(name)):
                table = table_of(read_summary(Path(name)), asked.columns, asked.over)
            if asked.formats or not (asked.columns or asked.over):
                write_table(Path(name).with_suffix(""), table, for_terminal(table), asked.formats)
            else:  # the files beside it have its own columns
                show(for_terminal(table))
        return
    features = feature_tables()
    known = sorted([*choices("experiment"), *features])
    experiments = cells_asked(asked, known, asked.render_only)
    if asked.plan:
        show_plan(experiments, asked)
        return
    cells = [cell for own in experiments.values() for cell in own if cell.runnable]
    for name, own in experiments.items() if asked.columns else ():
        check_table(name, own[0].scale if own else "", asked.columns)
    check_over(asked.over, [cell.config.method.name for cell in cells])
    # rows that experiments share are one
    run_rows(cells, deadline=deadline_of(asked.minutes), only_check=asked.render_only)
    for name in asked.words:
        if name in features:
            table = feature_table(features[name])
            text = json.dumps(list(table.lines)) if asked.json else for_terminal(table)
            write_table(results_of(asked.settings) / "tables" / name, table, text, asked.formats)
        elif not experiments[name]:
            say(f"{name} has none of {', '.join([*asked.models, *asked.methods])}")
        elif not any(cell.config.dry_run for cell in cells):
            _experiment(name, experiments[name], asked)
    errors = {
        f"{cell.experiment}, {cell.name}": cell.error
        for cell in cells
        if cell.error is not None and not isinstance(cell.error, NotHereError)
    }
    for place, error in errors.items():
        complain(f"failed: {place}: {reason_of(error)}")
    if errors:
        sys.exit(1)


def _experiment(name: str, cells: Sequence[Cell], asked: Table) -> None:
    """Writes the table of one experiment."""
    scale = cells[0].scale
    beside = published_beside(name, scale)
    points = [""] * len(cells) if beside else points_of(cells)
    runs = [
        structs.replace(run, label=run.label or point or None)
        for cell, point in zip(cells, points, strict=True)
        for run in table_runs(cell, beside)
    ]
    if experiment_of(name).published.ranked:
        whole = ranked([run for run in runs if not run.group])
        runs = [*whole, *(run for run in runs if run.group)]
    stored = Summary(name, scale, runs, asked.columns, over=possible(asked.over, runs))
    table = table_of(stored)
    text = stored.text.rstrip() if asked.json else for_terminal(table)
    folders = (cell.config.results for cell in cells if cell.runnable)
    path = next(folders, results_of(asked.settings)) / "tables" / file_name(name, scale)
    write_table(path, table, text, asked.formats, stored.text)
