"""`table`: runs what is missing of experiments, then writes their tables from the records alone;
`compare`: which method is fastest on a model and prompts of one's own; `method=A,B,C`: a row.
"""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from msgspec import structs

from skipbench.cli.commands import COMMANDS, Compare, Table
from skipbench.cli.experiments import request_of
from skipbench.cli.parser import results_of
from skipbench.cli.plan import show_plan
from skipbench.config.catalog import choices, experiment_of
from skipbench.config.compose import compose
from skipbench.config.derived import quoted
from skipbench.console import complain, is_json, say, show
from skipbench.errors import NotHereError, SkipbenchError, reason_of
from skipbench.experiments import plan
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_row, run_rows, show_run
from skipbench.experiments.table_runs import run_entry, table_runs
from skipbench.report.compared import BASELINE, Comparison, ranked
from skipbench.report.tables import model
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.formats import DEFAULT, check_formats, for_terminal, write
from skipbench.report.tables.runs import row_table
from skipbench.report.tables.stored import (
    check_columns,
    published_beside,
    read_table,
    stored_table,
    summary,
)
from skipbench.runs.files import write_atomic
from skipbench.runs.run import Run, plain

SEVERAL = re.compile(r"method=([\w.-]+(?:,[\w.-]+)+)")
GO_ON = ("model", "engine", "results=")  # settings for whoever goes on with the recommended method
LONGER = (
    "Recommended: vanilla. No method is faster beyond the noise here; more prompts (limit=, "
    "minutes=, a longer file), or longer outputs (dataset.max_new_tokens=), may tell more."
)


def run_table(asked: Table) -> None:
    """Runs what is missing and writes results/tables/NAME.*, a paper's as NAME.SCALE.*. A NAME.json
    is rendered again from itself, with `columns` or `over` into the `formats` that are given.
    """
    check_formats(asked.formats)
    if asked.words and all(name.endswith(".json") for name in asked.words):
        for name in asked.words:
            table = read_table(Path(name), asked.columns, asked.over)
            if asked.formats or not (asked.columns or asked.over):
                write_table(Path(name).with_suffix(""), table, for_terminal(table), asked.formats)
            else:  # the files beside it have its own columns
                show(for_terminal(table))
        return
    features = feature_tables()
    request = request_of(asked, sorted([*choices("experiment"), *features]))
    if asked.plan:
        show_plan(replace(request, names=[n for n in request.names if n not in features]), asked)
        return
    experiments = [n for n in request.names if n not in features]
    grids = plan.grids_of(replace(request, names=experiments), asked.render_only)
    for grid in grids if asked.columns else ():
        check_columns(grid.name, grid.scale, asked.columns)
    configs = [config for grid in grids for _, config in grid.cells]
    # rows that experiments share are one
    errors = iter(run_rows(configs, asked.render_only))
    measured = {grid.name: list(islice(errors, len(grid.cells))) for grid in grids}
    failed = list[str]()
    for name in request.names:
        if name not in features:
            grid = next(grid for grid in grids if grid.name == name)
            failed += _experiment(grid, asked, request, measured[name])
            continue
        table = feature_table(features[name])
        text = json.dumps(list(table.records)) if asked.json else for_terminal(table)
        write_table(results_of(asked.settings) / "tables" / name, table, text, asked.formats)
    for text in failed:
        complain(f"failed: {text}")
    if failed:
        sys.exit(1)


def _experiment(
    grid: plan.Grid, asked: Table, request: plan.Request, errors: Sequence[Exception | None]
) -> list[str]:
    """Writes one experiment; returns what failed. `errors`: of its cells that can be run."""
    name, scale, planned, cells = grid.name, grid.scale, grid.planned, grid.cells
    if not planned:
        say(f"{name} has none of {', '.join([*request.models, *request.methods])}")
        return []
    configs = {tuple(cell.words(name)): config for cell, config in cells}
    failed, reasons = list[str](), dict[tuple[str, ...], str]()
    for (cell, _), error in zip(cells, errors, strict=True):
        key = tuple(cell.words(name))
        if error is not None:
            reasons[key] = reason_of(error)
            if not isinstance(error, NotHereError):
                failed.append(f"{name}, {cell.name}: {reasons[key]}")
    if any(config.dry_run for config in configs.values()):
        return failed
    runs: list[Run] = []
    beside = published_beside(name, scale)
    points = [""] * len(planned) if beside else plan.points_of(planned)
    # one that is not run may have the overrides of one that is: `run` tells them apart
    for cell, point in zip(planned, points, strict=True):
        key = tuple(cell.words(name)) if cell.run else ()
        made = table_runs(name, cell, configs.get(key), reasons.get(key), beside)
        runs += [structs.replace(run, label=run.label or point or None) for run in made]
    if experiment_of(name).published.ranked:
        whole = ranked([run for run in runs if not run.group])
        runs = [*whole, *(run for run in runs if run.group)]
    results = next((config.results for config in configs.values()), Path("results"))
    stored = summary(name, scale, runs, asked.columns, over=asked.over)
    table = stored_table(stored)
    text = stored.rstrip() if asked.json else for_terminal(table)
    path = results / "tables" / plan.file_name(name, scale)
    write_table(path, table, text, asked.formats, stored)
    return failed


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


def methods_of(overrides: Sequence[str]) -> list[str]:
    """The methods of `method=A,B,C`; empty where one is chosen."""
    found = [match for word in overrides if (match := SEVERAL.fullmatch(word))]
    return list(dict.fromkeys(found[-1][1].split(","))) if found else []


def run_methods(methods: Sequence[str], overrides: Sequence[str]) -> None:
    """Runs what is missing of a row, and prints its table; exits with 1 where a method failed."""
    rest = [word for word in overrides if not SEVERAL.fullmatch(word)]
    configs = [compose([*rest, f"method={name}"]) for name in methods]
    runs, failed = list[Run](), dict[str, Exception]()
    for outcome in run_row(configs):
        if outcome.failure is not None:
            failed[outcome.config.method.name] = outcome.failure
        if outcome.run is not None:
            if outcome.run.metrics is not None:
                runs.append(run_entry(resolve_cell(outcome.config)))
            if is_json() or outcome.run.metrics is None:
                show_run(outcome.run)
    if runs:
        name = f"methods-{runs[0].model}-{runs[0].dataset}"
        stored = summary(name, "", runs)
        table = stored_table(stored)
        text = "" if is_json() else for_terminal(table)
        write_table(configs[0].results / "tables" / name, table, text, stored=stored)
    for name, error in failed.items():
        complain(f"failed: {name}: {reason_of(error)}")
    if failed:
        sys.exit(1)


def run_compare(asked: Compare) -> None:
    """Runs what can run within `minutes`, prints the ranked table and one recommendation."""
    from skipbench.experiments.ranking import rank_methods

    settings = asked.model_settings()
    if file := asked.prompts:
        if not Path(file).is_file():
            raise SkipbenchError(
                f"prompts={file}: no such file; wanted .jsonl or .parquet with `prompt` or "
                "`messages`, or .txt with one prompt per line"
            )
        settings += ["dataset=prompts", f"dataset.path={quoted(file)}"]
    limit = None
    if asked.limit is not None:
        limit = sys.maxsize if asked.limit == "null" else int(asked.limit)
    comparison = rank_methods(
        settings, 60 * asked.minutes, asked.method or asked.methods, limit, say
    )
    runs, model = comparison.runs, comparison.runs[0].model
    notes = ["vanilla against itself is the noise of this machine"]
    notes += [f"left out: {run.method}: {run.reason}" for run in runs if not run.metrics]
    measured, name = [run for run in runs if run.metrics], f"compare-{model}"
    recommendation, *commands = advice(comparison, settings)
    stored = summary(name, "", measured, asked.columns, [*notes, recommendation], asked.over)
    # its last line is said below
    shown = row_table(measured, asked.columns, "", notes, name, asked.over or "")
    text = json.dumps([plain(run) for run in runs]) if asked.json else for_terminal(shown)
    path = results_of(asked.settings) / "tables" / name
    write_table(path, stored_table(stored), text, stored=stored)
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
