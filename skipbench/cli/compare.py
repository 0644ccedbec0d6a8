"""`compare`: which method is fastest on a model of one's own, on prompts of one's own."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skipbench.cli.commands import Compare
from skipbench.cli.parser import results_of
from skipbench.cli.table import write_table
from skipbench.config.derived import quoted
from skipbench.console import say, show
from skipbench.errors import SkipbenchError
from skipbench.report.columns import main_cells
from skipbench.report.compared import BASELINE
from skipbench.report.tables.markdown import for_terminal
from skipbench.report.tables.runs import run_table
from skipbench.runs.run import plain

if TYPE_CHECKING:
    from skipbench.experiments.compare import Comparison

GO_ON = ("model", "engine", "results=")
"""Settings that whoever goes on with the recommended method needs, too."""
LONGER = (
    "Recommended: vanilla. No method is faster beyond the noise here; more prompts (limit=, "
    "minutes=, a longer file), or longer outputs (dataset.max_new_tokens=), may tell more."
)


def run_compare(asked: Compare) -> None:
    """Runs what can run within `minutes`, prints the ranked table and one recommendation."""
    from skipbench.experiments.compare import compare

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
    comparison = compare(settings, 60 * asked.minutes, asked.method or asked.methods, limit, say)
    runs, model = comparison.runs, comparison.runs[0].model
    notes = ["vanilla against itself is the noise of this machine"]
    notes += [f"left out: {run.method}: {run.reason}" for run in runs if not run.metrics]
    measured, name = [run for run in runs if run.metrics], f"compare-{model}"
    table = run_table(f"Methods on {model}", measured, notes, name, asked.columns)
    text = "" if asked.json else for_terminal(table)
    write_table(results_of(asked.settings) / "tables" / name, table, text)
    if asked.json:
        show(json.dumps([plain(run) for run in runs]))
    for line in advice(comparison, settings):
        (say if asked.json else show)(line)


def advice(comparison: "Comparison", settings: Sequence[str]) -> list[str]:
    """The recommendation, and how to go on with it: a command, and a line of Python, with the
    settings of the comparison that choose the model, the engine and the results.
    """
    best, recommendation = BASELINE, LONGER
    if comparison.best and comparison.best.metrics:
        best = str(comparison.best.method)
        names = ", ".join(comparison.tied)
        tied = f"; not told apart from {names}" if names else ""
        speedup = main_cells(comparison.best.metrics)["speedup"]
        recommendation = f"Recommended: {best}, {speedup} of vanilla{tied}."
    # a path alone says as much as model=path with it
    kept = [word for word in settings if word.startswith(GO_ON) and word != "model=path"]
    command = shlex.join(["python", "-m", "skipbench", "chat", *kept, f"method={best}"])
    values = {key: value.strip("'") for key, _, value in (word.partition("=") for word in kept)}
    model = values.get("model.path", values.get("model", str(comparison.runs[0].model)))
    arguments = [json.dumps(model), f"method={json.dumps(best)}"]
    if rest := [word for word in kept if word.partition("=")[0] not in ("model", "model.path")]:
        arguments.append(f"overrides={json.dumps(rest)}")
    return [recommendation, f"  {command}", f"  skipbench.load({', '.join(arguments)})"]
