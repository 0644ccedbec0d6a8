"""States of cells, by their records and by the jobs submitted for them, and how far each is."""

import contextlib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import NamedTuple

from skipbench.config.run_config import RunConfig
from skipbench.console import duration
from skipbench.errors import NotHereError, SkipbenchError, printable
from skipbench.experiments.plan import Grid, cell_names
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.set_search import search_trace
from skipbench.launch import manifest, slurm
from skipbench.runs.fingerprint import compare_identity
from skipbench.runs.provenance import config_hash
from skipbench.runs.record import VANILLA
from skipbench.runs.run import Run, read_run
from skipbench.runs.state import STALE_S, STATES, RunState, run_state

TO_RUN = ("missing", "failed", "interrupted", "stale")
LOG_LINES = 5
LOG_BYTES = 4096


@dataclass(frozen=True)
class CellStatus:
    """A cell of an experiment and its state.

    Attributes:
        folder: of its run; `None` while its skip set is missing.
        runnable: False where the cell waits for something that the user has to do.
        gpus: what a job asks for.
        unknown: it was submitted before, and Slurm does not say whether that job is over.
        logs: of the jobs that were submitted for it.
    """

    name: str
    config: RunConfig
    folder: Path | None
    state: RunState
    runnable: bool = True
    gpus: int = 1
    unknown: bool = False
    logs: Sequence[Path] = ()

    @property
    def to_run(self) -> bool:
        return self.runnable and self.state.state in TO_RUN

    @property
    def key(self) -> str:
        """Its run's folder; while its skip set is missing, that search and the settings."""
        if self.folder is not None:
            return self.folder.name
        settings = self.config.record()
        if self.config.search_dataset is None:  # the set is searched by hand
            return f"{'/'.join(self.config.names.values())}, {config_hash(settings)}"
        settings |= {"iterations": self.config.search.iterations}
        return f"search of {self.search}, {config_hash(settings)}"

    @property
    def search(self) -> str:
        """The folder of the search for its skip set."""
        return search_trace(self.config).parent.name


class NamedCells(NamedTuple):
    configs: Sequence[RunConfig]
    names: Sequence[str] = ()


def named_cells(grid: Grid) -> NamedCells:
    """The cells of an experiment that can be run, with their names."""
    return NamedCells([config for _, config in grid.cells], cell_names(grid.cells))


def cell_statuses(
    configs: Sequence[RunConfig], names: Sequence[str] = (), stale_s: float | None = None
) -> list[CellStatus]:
    """All cells with their states; those that become one run, once.

    Args:
        names: of the cells; where empty, their model, method, dataset, and label in a sweep.
        stale_s: age in seconds from which the status of a run on another machine counts as stale.
    """
    live = slurm.jobs()
    submitted = manifest.tasks(configs[0].results) if configs else {}
    cells: dict[str, CellStatus] = {}
    names = names or [" ".join([*c.names.values(), c.label or ""]).rstrip() for c in configs]
    for name, config in zip(names, configs, strict=True):
        cell = _status(name, config, live, STALE_S if stale_s is None else stale_s)
        tasks = submitted.get(cell.key, [])
        cell = replace(cell, logs=[task.log for task in tasks])
        if cell.state.state in TO_RUN and live is None:
            cell = replace(cell, unknown=bool(tasks))
        elif cell.state.state in TO_RUN and cell.key not in cells:
            cell = replace(cell, state=_with_jobs(cell, tasks, live or {}))
        cells.setdefault(cell.key, cell)
    return list(cells.values())


def _status(
    name: str, config: RunConfig, live: Mapping[str, str] | None, stale_s: float
) -> CellStatus:
    """The state of a cell by its record."""
    folder = None
    searched = config.search_dataset is not None
    try:
        cell = resolve_cell(config)
        state = run_state(folder := cell.folder, live, stale_s)
        if state.state == "done":
            done = read_run(folder).has(config.limit)
            compare_identity(folder, cell.config, done)
            state = state if done else RunState("interrupted", "it has fewer prompts")
        return CellStatus(name, config, folder, state)
    except NotHereError as error:
        return CellStatus(name, config, None, RunState("missing", str(error)), searched)
    except SkipbenchError as error:  # an unreadable search, or a run that would be refused again
        if folder is None and not searched:
            raise
        return CellStatus(name, config, folder, RunState("failed", str(error)), False)


def _with_jobs(
    cell: CellStatus, tasks: Sequence[manifest.Task], live: Mapping[str, str]
) -> RunState:
    """The state of a cell that would have to run, by what became of its jobs."""
    if states := [live[task.job] for task in tasks if task.job in live]:
        if "RUNNING" in states:
            return RunState("running", "its job has recorded nothing yet")
        return RunState("queued", f"its job is {states[-1]}")
    begun = [task for task in tasks if task.log.exists()]
    if begun and cell.state.state == "missing" and cell.folder is not None:
        job, log = begun[-1]
        return RunState("failed", f"job {job} is over and left no record; see {log}")
    return cell.state


def counts(cells: Sequence[CellStatus]) -> str:
    """Number of cells in each state, in a line."""
    count = Counter(cell.state.state for cell in cells)
    return f"{len(cells)} cells: " + ", ".join(f"{count[state]} {state}" for state in STATES)


def command_line(command: str, names: Sequence[str], words: Sequence[str]) -> str:
    """The command on experiments with the same words."""
    kept = [w for w in words if command != "table" or not w.startswith(("hardware", "stale="))]
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


def row_progress(row: Sequence[CellStatus]) -> list[Progress]:
    """The progress of the cells of one row, whose running arms take turns on every prompt."""
    runs = [_read(cell.folder) for cell in row]
    turns = [
        [fmean(t.arms[arm].seconds.total for t in run.turns) for arm in (run.arm, VANILLA)]
        for cell, run in zip(row, runs, strict=True)
        if run and run.turns and cell.state.state == "running"
    ]
    prompt_s = sum(method for method, _ in turns) + max((v for _, v in turns), default=0.0)
    made = list[Progress]()
    for cell, run in zip(row, runs, strict=True):
        of, own = (run.status.prompts, run.turns) if run else (None, [])
        ratios = [*run.paired().values()] if run else []
        speedup = run.speedup if run and run.done else geometric_mean(ratios) if ratios else None
        running = of is not None and cell.state.state == "running"
        left_s = prompt_s * (of - len(own)) if running and of else None
        made.append(Progress(len(own), of, speedup, left_s))
    return made


def _read(folder: Path | None) -> Run | None:
    """What can be read; what is wrong with the rest is the reason of the cell's state."""
    with contextlib.suppress(SkipbenchError):
        if folder and (run := read_run(folder)).turns is not None:
            return run
    return None


def last_lines(cell: CellStatus) -> list[str]:
    """The end of the newest log of a cell: of its run, or of its last job."""
    places = [*cell.logs, *([cell.folder / "run.log"] if cell.folder else [])]
    logs = [path for path in places if path.is_file()]
    if not logs:
        return []
    with max(logs, key=lambda path: path.stat().st_mtime).open("rb") as log:
        log.seek(max(0, log.seek(0, 2) - LOG_BYTES))
        text = log.read().decode(errors="replace")
    return [printable(line) for line in text.splitlines() if line.strip()][-LOG_LINES:]
