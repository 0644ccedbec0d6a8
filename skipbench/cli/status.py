"""`status`: the cells of experiments, how far each is, and how to go on."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

from rich.live import Live
from rich.text import Text

from skipbench.cli.commands import Status
from skipbench.cli.experiments import request_of, show_plan
from skipbench.config.catalog import choices
from skipbench.console import out, show
from skipbench.experiments.plan import grids_of
from skipbench.experiments.row import rows_of
from skipbench.launch.progress import Progress, last_lines, row_progress
from skipbench.launch.status import (
    CellStatus,
    NamedCells,
    cell_statuses,
    command_line,
    counts,
    named_cells,
)
from skipbench.report.published import paper_of

WATCH_S = 10.0
MEANS = (
    "speedups here: geometric mean over the questions, prefill included; the paper's table has the "
    "paper's own estimator, so that its numbers differ (docs/metrics.md)"
)


class _Line(NamedTuple):
    cell: CellStatus
    progress: Progress
    log: list[str]  # the end of it, where the cell failed


def run_status(asked: Status) -> None:
    """Prints every cell and the command that runs the rest; exits with 1 unless all is done. With
    `--json` a line of JSON per cell; with `--watch` those that run, until none is left.
    """
    request = request_of(asked, choices("experiment"))
    if asked.plan:
        show_plan(request)
        return
    cells = {grid.name: named_cells(grid) for grid in grids_of(request)}
    if asked.watch:
        _watch(cells, asked.stale)
    lines_of = {name: _lines(own, asked.stale) for name, own in cells.items()}
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
        if any(line.cell.to_run for line in lines):
            sent = any(line.cell.logs for line in lines)  # to a cluster
            command = "submit" if request.hardware or sent else "table"
            more = "" if request.hardware or not sent else " with the hardware= of the others"
            show(f"to run them: {command_line(command, [name], asked.given)}{more}")
    if any(line.cell.state.state != "done" for lines in lines_of.values() for line in lines):
        sys.exit(1)


def _lines(cells: NamedCells, stale_s: float | None) -> list[_Line]:
    """The cells, row by row."""
    statuses, lines = cell_statuses(*cells, stale_s), list[_Line]()
    for row in rows_of([cell.config for cell in statuses]):
        own = [statuses[at] for at in row]
        for cell, progress in zip(own, row_progress(own), strict=True):
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


def _watch(cells: dict[str, NamedCells], stale_s: float | None) -> None:
    only = ("running", "queued", "failed", "stale")
    with Live(console=out, auto_refresh=False, transient=True) as live:
        while True:
            lines_of = {name: _lines(own, stale_s) for name, own in cells.items()}
            texts = [text for name, lines in lines_of.items() for text in _texts(name, lines, only)]
            live.update(Text("\n".join(texts)), refresh=True)
            states = {line.cell.state.state for lines in lines_of.values() for line in lines}
            if states.isdisjoint({"running", "queued"}):
                return
            time.sleep(WATCH_S)


def _record(name: str, line: _Line) -> dict[str, object]:
    cell = line.cell
    named = {"experiment": name, "name": cell.name, "run": cell.folder and str(cell.folder)}
    return {**named, **asdict(cell.state), **asdict(line.progress), "log": line.log}
