"""Methods side by side: a cell, `method=A,B,C` and a sweep; and `compare`, which ranks those that
can run on a model and prompts of one's own.
"""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from skipbench.cli.command import Compared
from skipbench.cli.commands import COMMANDS, Compare
from skipbench.cli.parser import results_of
from skipbench.config.catalog import quoted
from skipbench.config.compose import compose_cells
from skipbench.console import complain, is_json, say, show
from skipbench.data.own import prompts as read_prompts
from skipbench.errors import SkipbenchError, reason_of
from skipbench.experiments.ranking import cells_to_rank, run_ranked
from skipbench.experiments.row import deadline_of, run_rows, show_run
from skipbench.experiments.table_runs import run_entry
from skipbench.report.columns import check_columns
from skipbench.report.compared import BASELINE, Comparison, check_over, conclude
from skipbench.report.tables import model
from skipbench.report.tables.formats import DEFAULT, for_terminal, write
from skipbench.report.tables.runs import row_table
from skipbench.report.tables.stored import Summary, table_of
from skipbench.runs.cell import Cell
from skipbench.runs.files import write_atomic
from skipbench.runs.run import Run, plain

SEVERAL = re.compile(r"method=([\w.-]+(?:,[\w.-]+)+)")
GO_ON = ("model", "engine", "results=")  # settings for whoever goes on with the recommended method
LONGER = (
    "Recommended: vanilla. No method is faster beyond the noise here; more prompts (limit=, "
    "minutes=, a longer file), or longer outputs (dataset.max_new_tokens=), may tell more."
)


def cells_of_methods(overrides: Sequence[str]) -> list[Cell]:
    """The cells of `method=A,B,C`; none where one method is chosen."""
    found = [match for word in overrides if (match := SEVERAL.fullmatch(word))]
    rest = [word for word in overrides if not SEVERAL.fullmatch(word)]
    names = dict.fromkeys(found[-1][1].split(",")) if found else {}
    return [Cell(one) for one in compose_cells([[*rest, f"method={name}"] for name in names])]


def run_cells(cells: Sequence[Cell], asked: Compared) -> None:
    """Runs what is missing of cells, and prints the table of one, or of all, which is written, too.
    Raises the error of all cells where it is one; exits with 1 where a cell failed, with 2 where
    all did.
    """
    check_columns(asked.columns)
    check_over(asked.over, [cell.config.method.name for cell in cells])
    run_rows(cells, deadline=deadline_of(asked.minutes))
    runs = [run for cell in cells if cell.run is not None and (run := run_entry(cell)).metrics]
    for cell in cells if is_json() or len(cells) == 1 else ():
        if cell.run is not None:
            show_run(structs.replace(cell.run, label=cell.config.label), asked.columns)
    if len(cells) > 1 and runs:
        first = cells[0].config
        name = f"methods-{first.model.name}-{first.dataset.name}"
        name = name if first.label is None else "sweep"
        stored = Summary(name, "", runs, asked.columns, over=possible(asked.over, runs))
        table = table_of(stored)
        text = "" if is_json() else for_terminal(table)
        write_table(first.results / "tables" / name, table, text, stored=stored.text)
    errors = {cell.config.label or cell.name: cell.error for cell in cells if cell.error}
    if len(errors) == len(cells) and len({*map(reason_of, errors.values())}) == 1:
        raise next(iter(errors.values()))
    for name, error in errors.items():
        complain(f"failed: {name}: {reason_of(error)}")
    if errors:
        sys.exit(2 if len(errors) == len(cells) else 1)


def possible(over: str, runs: Sequence[Run]) -> str:
    """The method `over`, if ratios to it can be given: it did not fail; else empty."""
    return over if over in [BASELINE, *(run.method for run in runs if run.metrics)] else ""


def write_table(
    path: Path, table: model.Table, text: str, formats: Sequence[str] = (), stored: str = ""
) -> None:
    """Writes a table in these formats (default: `DEFAULT`), and its summary `stored` as .json, to
    `path`; shows `text`. Raises SkipbenchError for an unknown format.
    """
    files = write(table, formats or DEFAULT) | ({"json": stored} if stored else {})
    for suffix, content in files.items():
        write_atomic(path.with_name(f"{path.name}.{suffix}"), content)
    if text:
        show(text)
    say(f"written: {path}.{', .'.join(files)}")


def run_compare(asked: Compare) -> None:
    """Runs what can run within `minutes`, prints the ranked table and one recommendation."""
    settings = asked.model_settings()
    if file := asked.prompts:
        read_prompts(file, None, 0, False)  # refused before a model is loaded
        settings += ["dataset=prompts", f"dataset.path={quoted(file)}"]
    check_columns(asked.columns)
    cells = cells_to_rank(settings, asked.method, asked.limit)
    check_over(asked.over, [cell.config.method.name for cell in cells if cell.runnable])
    run_ranked(cells, asked.minutes)
    comparison = conclude([run_entry(cell) for cell in cells])
    runs, unable = comparison.runs, [cell for cell in cells if cell.error or cell.reason]
    notes = [f"left out: {run.method}: {run.reason}" for run in map(run_entry, unable)]
    if any(cell.runnable and cell.config.dry_run for cell in cells):
        for note in notes:
            say(note)
        return
    measured = [run for run in runs if run.metrics]
    if not measured:  # vanilla failed, too
        raise next((cell.error for cell in cells if cell.error), SkipbenchError("; ".join(notes)))
    notes.insert(0, "vanilla against itself is the noise of this machine")
    name, over = f"compare-{measured[0].model}", possible(asked.over, measured)
    recommendation, *commands = advice(comparison, settings)
    stored = Summary(name, "", measured, asked.columns, [*notes, recommendation], over)
    # its last line is said below
    shown = row_table(measured, asked.columns, "", notes, name, over)
    text = json.dumps([plain(run) for run in runs]) if asked.json else for_terminal(shown)
    path = results_of(asked.settings) / "tables" / name
    write_table(path, table_of(stored), text, stored=stored.text)
    for line in (recommendation, *commands):
        (say if asked.json else show)(line)


def advice(comparison: Comparison, settings: Sequence[str]) -> list[str]:
    """The recommendation, and how to go on with it: a command, and a line of Python, with the
    settings of the comparison that choose the model, the engine and the results.
    """
    best, recommendation = BASELINE, LONGER
    if comparison.best:
        best, recommendation = comparison.best.method, f"Recommended: {comparison.recommended}."
    # a path alone says as much as model=path with it
    kept = [word for word in settings if word.startswith(GO_ON) and word != "model=path"]
    talk = "chat" if "chat" in COMMANDS else "generate"
    command = shlex.join(["python", "-m", "skipbench", talk, *kept, f"method={best}"])
    values = {key: value.strip("'") for key, _, value in (word.partition("=") for word in kept)}
    model = values.get("model.path", values.get("model", str(comparison.runs[0].model)))
    arguments = [json.dumps(model), f"method={json.dumps(best)}"]
    if rest := [word for word in kept if word.partition("=")[0] not in ("model", "model.path")]:
        arguments.append(f"overrides={json.dumps(rest)}")
    return [recommendation, f"  {command}", f"  skipbench.load({', '.join(arguments)})"]
