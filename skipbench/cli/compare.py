"""`compare`: which method is fastest on a model of one's own, on prompts of one's own."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skipbench.config.catalog import choices
from skipbench.config.explain import did_you_mean
from skipbench.config.names import model_words, quoted
from skipbench.console import say, show
from skipbench.errors import SkipbenchError
from skipbench.report.columns import main_cells
from skipbench.report.compared import BASELINE
from skipbench.report.tables.formats import write
from skipbench.report.tables.markdown import for_terminal
from skipbench.report.tables.runs import run_table
from skipbench.runs.files import write_atomic
from skipbench.runs.run import plain

if TYPE_CHECKING:
    from skipbench.experiments.compare import Comparison

KEYS = ("prompts", "minutes", "methods", "columns")
"""Keys of this command alone; every other one is a setting, as for a cell."""
MINUTES = 20.0
GO_ON = ("model", "engine", "results=")
"""Settings that whoever goes on with the recommended method needs, too."""
LONGER = (
    "Recommended: vanilla. No method is faster beyond the noise here; more prompts (limit=, "
    "minutes=, a longer file), or longer outputs (dataset.max_new_tokens=), may tell more."
)


def run(arguments: list[str]) -> None:
    """Runs what can run within `minutes`, prints the ranked table and one recommendation.

    Raises:
        SkipbenchError: a model, a file of prompts or a value that cannot be used.
    """
    from skipbench.experiments.compare import compare

    settings, own = _parse([a for a in arguments if a != "--json"])
    limit = next((w.partition("=")[2] for w in settings if w.startswith("limit=")), None)
    found = compare(
        settings,
        60 * _minutes(own.get("minutes")),
        [name for name in own.get("methods", "").split(",") if name],
        None if limit is None else _count(limit),
        say,
    )
    quiet = "--json" in arguments
    columns = [key for key in own.get("columns", "").split(",") if key]
    _write(found, settings, quiet, columns)
    if quiet:
        show(json.dumps([plain(run) for run in found.runs]))
    for line in advice(found, settings):
        (say if quiet else show)(line)


def _parse(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    settings: list[str] = []
    own: dict[str, str] = {}
    for word in arguments:
        key, sign, value = word.partition("=")
        if not sign or word.startswith("-"):
            raise SkipbenchError(
                f"compare: {word!r} is no KEY=VALUE.{did_you_mean(word, [*KEYS, '--json'])} As in "
                "compare model.path=/models/my-llama prompts=prompts.jsonl minutes=20"
            )
        if key == "method":
            own["methods"] = value
        elif key in KEYS:
            own[key] = value
        elif key == "model" and value not in choices("model"):
            settings += model_words(value)
        else:
            settings.append(word)
    if file := own.get("prompts"):
        if not Path(file).is_file():
            raise SkipbenchError(
                f"prompts={file}: no such file; wanted .jsonl or .parquet with `prompt` or "
                "`messages`, or .txt with one prompt per line"
            )
        settings += ["dataset=prompts", f"dataset.path={quoted(file)}"]
    return settings, own


def _minutes(given: str | None) -> float:
    try:
        minutes = MINUTES if given is None else float(given)
    except ValueError:
        minutes = 0.0
    if not minutes > 0:
        raise SkipbenchError(f"minutes={given}; wanted a number above 0")
    return minutes


def _count(given: str) -> int:
    if given == "null":
        return sys.maxsize
    if not given.isdecimal() or int(given) < 1:
        raise SkipbenchError(f"limit={given}; wanted 1 or more, or null for all")
    return int(given)


def _write(
    found: "Comparison", settings: Sequence[str], quiet: bool, columns: Sequence[str]
) -> None:
    """Writes the table below `results/tables` and shows it, unless `quiet`."""
    results = next((w.partition("=")[2] for w in settings if w.startswith("results=")), "results")
    measured = [run for run in found.runs if run.metrics]
    left_out = [run for run in found.runs if not run.metrics]
    name = f"compare-{found.runs[0].model}"
    table = run_table(
        f"Methods on {found.runs[0].model}",
        measured,
        [
            "vanilla against itself is the noise of this machine",
            *(f"left out: {run.method}: {run.reason}" for run in left_out),
        ],
        name,
        columns,
    )
    folder = Path(results) / "tables"
    formats = write(table)
    for suffix, text in formats.items():
        write_atomic(folder / f"{name}.{suffix}", text)
    if not quiet:
        show(for_terminal(table))
    say(f"written: {folder / name}.{', .'.join(formats)}")


def advice(comparison: "Comparison", settings: Sequence[str]) -> list[str]:
    """The recommendation, and how to go on with it: a command, and a line of Python.

    Args:
        settings: overrides of the comparison, of which those of the model, of the engine and of the
            results, where searched skip sets are, are handed on.
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
