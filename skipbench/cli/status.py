"""`status`: the cells of experiments, how far each is, and how to go on."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from rich.live import Live
from rich.text import Text

from skipbench.cli.commands import Status
from skipbench.cli.experiments import cells_asked
from skipbench.cli.parser import results_of
from skipbench.config.catalog import choices
from skipbench.console import out, show
from skipbench.errors import SkipbenchError
from skipbench.experiments.plan import once
from skipbench.launch import manifest
from skipbench.launch.status import (
    Progress,
    command_line,
    counts,
    last_lines,
    row_progress,
    to_run,
    with_states,
)
from skipbench.report.published import paper_of
from skipbench.runs.cell import Cell, rows_of

WATCH_S = 10.0
MEANS = (
    "speedups here: geometric mean over the questions, prefill included; the paper's table has the "
    "paper's own estimator, so that its numbers differ (docs/metrics.md)"
)


class _Line(NamedTuple):
    cell: Cell
    progress: Progress
    log: list[str]  # the end of it, where the cell failed


def run_status(asked: Status) -> None:
    """Prints every cell of the experiments, or of all submissions where none is named, and the
    command that runs the rest; exits with 1 unless all is done. With `--json` a line of JSON per
    cell; with `--watch` those that run, until none is left.
    """
    sent = dict[str, Path]()
    if asked.words or not all(word.startswith("results=") for word in asked.given):
        asked_for = cells_asked(asked, choices("experiment"), without_torch=True)
        cells = {name: once(own) for name, own in asked_for.items()}
    else:
        folders = manifest.cells(results := results_of(asked.settings))
        if not folders:
            raise SkipbenchError(
                f"nothing was submitted from {results}; name an experiment, one of python -m "
                "skipbench list experiments, or another results=FOLDER"
            )
        sent = {folder.name: folder for folder in folders}
        cells = {folder.name: own for folder, own in folders.items()}
    if asked.watch:
        _watch(cells)
    lines_of = {name: _lines(own) for name, own in cells.items()}
    for name, lines in lines_of.items():
        if asked.json:
            for line in lines:
                show(json.dumps(_record(name, line)))
            continue
        for text in _texts(name, lines):
            show(text)
        timed = any(line.progress.speedup is not None for line in lines)
        if timed and paper_of(name) is not None:
            show(MEANS)
        if any(to_run(line.cell) for line in lines):
            show(f"to run them: {_command(name, asked, lines, sent.get(name))}")
    if any(line.cell.state.state != "done" for lines in lines_of.values() for line in lines):
        sys.exit(1)


def _command(name: str, asked: Status, lines: Sequence[_Line], folder: Path | None) -> str:
    """What runs the rest: as it was submitted, where it was. `folder`: a submission, whose name
    `name` is.
    """
    if folder is not None:
        return command_line("submit", [], manifest.command(folder).words or ["..."])
    jobs = [log.parent for line in lines for log in line.cell.logs]
    placed = any(word.startswith("hardware=") for word in asked.given)
    if placed or not jobs:
        return command_line("submit" if placed else "table", [name], asked.given)
    given = [word for word in manifest.command(jobs[-1]).words if "=" in word]
    return command_line("submit", [name], given or [*asked.given, "hardware=..."])


def _lines(cells: Sequence[Cell]) -> list[_Line]:
    """The cells, row by row."""
    lines = list[_Line]()
    for row in rows_of(with_states(cells)):
        for cell, progress in zip(row, row_progress(row), strict=True):
            failed = cell.state.state in ("failed", "stale")
            lines.append(_Line(cell, progress, last_lines(cell) if failed else []))
    return lines


def _texts(name: str, lines: Sequence[_Line], only: Sequence[str] = ()) -> Iterator[str]:
    """A line per cell, and the end of its log; only those of some states, or all."""
    yield f"{name}: {counts([line.cell for line in lines])}"
    width, told = max((len(line.cell.name) for line in lines), default=0), list[str]()
    for cell, progress, log in lines:
        state, reason = cell.state.state, cell.state.reason
        if only and state not in only:
            continue
        text = f"{state:<12}{cell.name:<{width}}  {progress}".rstrip()
        yield text + (f": {reason}" if reason else "")
        if log != told:  # the cells of a row have one
            yield from (f"{'':<12}| {line}" for line in log)
        told = log or told
    if unknown := sum(line.cell.unknown for line in lines):
        yield f"squeue does not answer: {unknown} of them were submitted and may be queued"


def _watch(cells: dict[str, list[Cell]]) -> None:
    only = ("running", "queued", "failed", "stale")
    with Live(console=out, auto_refresh=False, transient=True) as live:
        while True:
            lines_of = {name: _lines(own) for name, own in cells.items()}
            texts = [text for name, lines in lines_of.items() for text in _texts(name, lines, only)]
            live.update(Text("\n".join(texts)), refresh=True)
            states = {line.cell.state.state for lines in lines_of.values() for line in lines}
            if states.isdisjoint({"running", "queued"}):
                return
            time.sleep(WATCH_S)


def _record(name: str, line: _Line) -> dict[str, object]:
    cell, folder = line.cell, str(line.cell.folder) if line.cell.filled else None
    named = {"experiment": name, "name": cell.name, "run": folder}
    return {**named, **asdict(cell.state), **asdict(line.progress), "log": line.log}
