"""States of cells, by their records and by the jobs submitted for them, and how far each is."""

import contextlib
import itertools
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from skipbench.console import duration
from skipbench.errors import NotHereError, SkipbenchError, printable
from skipbench.experiments.resolve import checked_run, fill_skip_set
from skipbench.experiments.set_search import search_trace
from skipbench.launch import manifest, slurm
from skipbench.runs.cell import Cell, rows_of
from skipbench.runs.provenance import config_hash
from skipbench.runs.record import VANILLA
from skipbench.runs.run import Run, read_run
from skipbench.runs.state import STATES, RunState, run_state

TO_RUN = ("missing", "failed", "interrupted", "stale")
LOG_LINES = 5
LOG_BYTES = 4096


def search_of(cell: Cell) -> str:
    """The name of the search for its skip set."""
    return search_trace(cell.config).parent.name


def key_of(cell: Cell) -> str:
    """Its run's id; while its skip set is missing, that search and the settings."""
    if cell.filled:
        return f"{cell.row.name}/{cell.folder.name}"
    config, settings = cell.config, cell.config.record()
    if config.search_dataset is None:  # the set is searched by hand
        return f"{'/'.join(config.names.values())}, {config_hash(settings)}"
    settings |= {"iterations": config.search.iterations}
    return f"search of {search_of(cell)}, {config_hash(settings)}"


def to_run(cell: Cell) -> bool:
    return cell.runnable and cell.state.state in TO_RUN


def with_states(cells: Sequence[Cell]) -> list[Cell]:
    """All cells with their states; those that become one run, once, with the most prompts."""
    live = slurm.jobs()
    submitted = manifest.tasks(cells[0].config.results) if cells else {}
    for cell in (cell for row in rows_of(cells) for cell in row):  # whose turns are read once
        _read_state(cell, live)
    for cell in cells:
        tasks = submitted.get(key_of(cell), [])
        cell.logs = [task.log for task in tasks]
        lost = cell.state.state in TO_RUN
        cell.unknown = lost and live is None and bool(tasks)
        if lost and live is not None:
            cell.state = _with_jobs(cell, tasks, live)
    return [*most_asked(cells).values()]


def most_asked(cells: Iterable[Cell]) -> dict[str, Cell]:
    """By `key_of`, of the cells that become one run that of the most prompts."""
    found: dict[str, Cell] = {}
    for cell in cells:
        first = found.setdefault(key := key_of(cell), cell)
        found[key] = max(first, cell, key=lambda c: c.config.limit or math.inf)
    return found


def _read_state(cell: Cell, live: Mapping[str, str] | None) -> None:
    """The state of a cell by its record."""
    searched = cell.config.search_dataset is not None
    try:
        fill_skip_set(cell)
        cell.state, cell.runnable = run_state(cell.folder, live), True
        if cell.state.state == "done" and not checked_run(cell).has(cell.config.limit):
            cell.state = RunState("interrupted", "it has fewer prompts than are asked for")
    except NotHereError as error:
        cell.state, cell.runnable = RunState("missing", str(error)), searched
    except SkipbenchError as error:  # an unreadable search, or a run that would be refused again
        if not cell.filled and not searched:
            raise
        cell.state, cell.runnable = RunState("failed", str(error)), False


def _with_jobs(cell: Cell, tasks: Sequence[manifest.Task], live: Mapping[str, str]) -> RunState:
    """The state of a cell that would have to run, by what became of its jobs."""
    if states := [live[task.job] for task in tasks if task.job in live]:
        if "RUNNING" in states:
            return RunState("running", "its job has recorded nothing yet")
        return RunState("queued", f"its job is {states[-1]}")
    begun = [task for task in tasks if task.log.exists()]
    if begun and cell.state.state == "missing" and cell.filled:
        job, log = begun[-1]
        return RunState("failed", f"job {job} is over and left no record; see {log}")
    return cell.state


def counts(cells: Sequence[Cell]) -> str:
    """Number of cells in each state, in a line."""
    count = Counter(cell.state.state for cell in cells)
    return f"{len(cells)} cells: " + ", ".join(f"{count[state]} {state}" for state in STATES)


def command_line(command: str, names: Sequence[str], words: Sequence[str]) -> str:
    """The command on experiments with the same words."""
    kept = [w for w in words if command != "table" or not w.startswith("hardware")]
    return shlex.join(["python", "-m", "skipbench", command, *names, *kept])


@dataclass(frozen=True)
class Progress:
    """Samples of a cell so far, of how many, their speedup, and seconds until its row is done."""

    samples: int = 0
    of: int | None = None
    speedup: float | None = None
    left_s: float | None = None

    def __str__(self) -> str:
        """`212/480  1.31x  ~1 h 40 min`."""
        parts = [f"{self.samples}/{self.of}" if self.of else str(self.samples)]
        parts += [f"{self.speedup:.2f}x"] if self.speedup is not None else []
        parts += [f"~{duration(self.left_s)}"] if self.left_s else []
        return "  ".join(parts) if self.samples else ""


def row_progress(row: Sequence[Cell]) -> list[Progress]:
    """The progress of the cells of a row, whose running arms take turns on every prompt."""
    runs, seconds, made = [_read(cell) for cell in row], list[list[float]](), list[Progress]()
    running = [cell.state.state == "running" for cell in row]
    for run in itertools.compress(runs, running):
        if run and run.turns:
            arms = [[turn.arms[arm] for turn in run.turns] for arm in (run.arm, VANILLA)]
            seconds.append([fmean(arm.seconds.total for arm in each) for each in arms])
    prompt_s = sum(own for own, _ in seconds) + max((vanilla for _, vanilla in seconds), default=0)
    for run, now in zip(runs, running, strict=True):
        if run is None:
            made.append(Progress())
            continue
        of, ratios = run.status.prompts, [*run.paired().values()]
        speedup = run.speedup if run.done else geometric_mean(ratios) if ratios else None
        left_s = prompt_s * (of - len(run.turns)) if of and now else None
        made.append(Progress(len(run.turns), of, speedup, left_s))
    return made


def _read(cell: Cell) -> Run | None:
    """What can be read; what is wrong with the rest is the reason of the cell's state."""
    with contextlib.suppress(SkipbenchError):
        if cell.filled and (run := read_run(cell.folder)).turns is not None:
            return run
    return None


def last_lines(cell: Cell) -> list[str]:
    """The end of the newest log of a cell: of its run, or of its last job."""
    places = [*cell.logs, *([cell.folder / "run.log"] if cell.filled else [])]
    logs = [path for path in places if path.is_file()]
    if not logs:
        return []
    with max(logs, key=lambda path: path.stat().st_mtime).open("rb") as log:
        log.seek(max(0, log.seek(0, 2) - LOG_BYTES))
        text = log.read().decode(errors="replace")
    return [printable(line) for line in text.splitlines() if line.strip()][-LOG_LINES:]
