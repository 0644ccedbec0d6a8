"""States of an experiment's cells: from their records, and from the jobs that were submitted for
them.
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import resolve_cell
from skipbench.experiments.plan import Request, cells_of, scale_of
from skipbench.experiments.set_search import search_trace
from skipbench.launch import manifest, slurm
from skipbench.runs.fingerprint import refuse_other
from skipbench.runs.provenance import config_hash
from skipbench.runs.run import read_run
from skipbench.runs.state import STALE_S, STATES, RunState, run_state

TO_RUN = ("missing", "failed", "interrupted", "stale")


@dataclass(frozen=True)
class CellStatus:
    """A cell of an experiment and its state.

    Attributes:
        folder: of its run; `None` while its skip set is missing.
        runnable: False where the cell waits for something that the user has to do.
        gpus: what a job asks for.
        unknown: it was submitted before, and Slurm does not say whether that job is over.
    """

    name: str
    config: RunConfig
    folder: Path | None
    state: RunState
    runnable: bool = True
    gpus: int = 1
    unknown: bool = False

    @property
    def key(self) -> str:
        """Identifies a cell: its run's folder, or while its skip set is missing, where that comes
        from and the settings.
        """
        if self.folder is not None:
            return self.folder.name
        settings = self.config.record()
        if self.config.search_dataset is None:  # the set is searched by hand
            return f"{self.name}, {config_hash(settings)}"
        return (
            f"search of {self.search}, "
            f"{config_hash(settings | {'iterations': self.config.search.iterations})}"
        )

    @property
    def search(self) -> str:
        """The folder of the search for its skip set."""
        return search_trace(self.config).parent.name


def experiment_statuses(
    experiment: str, request: Request, stale_s: float | None = None
) -> list[CellStatus]:
    """The cells of an experiment that can be run, with their states; arguments as below."""
    planned = cells_of(experiment, request, scale_of(experiment, request.scale))
    return cell_statuses([config for _, config in planned], stale_s)


def cell_statuses(configs: Sequence[RunConfig], stale_s: float | None = None) -> list[CellStatus]:
    """The repetitions of all cells with their states; those that become one run, once.

    Args:
        stale_s: age in seconds from which the status of a run on another machine counts as stale.
    """
    live = slurm.jobs()
    submitted: dict[str, list[manifest.Task]] | None = None
    cells: dict[str, CellStatus] = {}
    for config in (one for whole in configs for one in whole.repetitions()):
        cell = _status(config, live, STALE_S if stale_s is None else stale_s)
        if submitted is None:
            submitted = manifest.tasks(config.results)
        tasks = submitted.get(cell.key, [])
        unknown = live is None and bool(tasks) and cell.state.state in TO_RUN
        cells.setdefault(
            cell.key, replace(cell, state=_with_jobs(cell, tasks, live), unknown=unknown)
        )
    return list(cells.values())


def _status(config: RunConfig, live: Mapping[str, str] | None, stale_s: float) -> CellStatus:
    name = "/".join(config.names.values())
    try:
        cell = resolve_cell(config)
        state = run_state(cell.folder, live, stale_s)
        if state.state == "done":
            try:
                read_run(cell.folder)
                refuse_other(cell.folder, cell.config.model, cell.config.method)
            except SkipbenchError as error:  # submitted again it would be refused again
                return CellStatus(
                    name, config, cell.folder, RunState("failed", str(error)), runnable=False
                )
        return CellStatus(name, config, cell.folder, state)
    except NotHereError as error:
        return CellStatus(
            name, config, None, RunState("missing", str(error)), config.search_dataset is not None
        )
    except SkipbenchError as error:
        if config.search_dataset is None:
            raise
        # an unreadable search
        return CellStatus(name, config, None, RunState("failed", str(error)), runnable=False)


def _with_jobs(
    cell: CellStatus, tasks: Sequence[manifest.Task], live: Mapping[str, str] | None
) -> RunState:
    """The state in a cell's record; where it has none, what became of its jobs.

    `live` as of `slurm.jobs`.
    """
    if cell.state.state not in TO_RUN or live is None:
        return cell.state
    if states := [live[task.job] for task in tasks if task.job in live]:
        return RunState("queued", f"its job is {states[-1]}")
    begun = [task for task in tasks if task.log.exists()]
    if begun and cell.state.state == "missing" and cell.folder is not None:
        return RunState(
            "failed", f"job {begun[-1].job} is over and left no record; see {begun[-1].log}"
        )
    return cell.state


def schedule_stages(cells: Sequence[CellStatus]) -> list[list[CellStatus]]:
    """Splits cells into at most two stages so that each missing search runs once.

    Stage 1 holds one cell per search, the one with the most iterations; stage 2 holds the cells
    that reuse its result.
    """
    first: dict[str, CellStatus] = {}
    for cell in cells:
        key = cell.key if cell.folder is not None else cell.search
        if key not in first or cell.config.search.iterations > first[key].config.search.iterations:
            first[key] = cell
    early = {id(cell) for cell in first.values()}
    stages = [c for c in cells if id(c) in early], [c for c in cells if id(c) not in early]
    return [stage for stage in stages if stage]


def counts(cells: Sequence[CellStatus]) -> str:
    """Number of cells in each state, in a line."""
    count = Counter(cell.state.state for cell in cells)
    return f"{len(cells)} cells: " + ", ".join(f"{count[state]} {state}" for state in STATES)


def command_line(command: str, name: str, words: Sequence[str]) -> str:
    """The command on an experiment with the same words."""
    kept = [w for w in words if command != "table" or not w.startswith(("hardware", "stale="))]
    return shlex.join(["python", "-m", "skipbench", command, name, *kept])


def record_of(cell: CellStatus) -> dict[str, Any]:
    """A cell as the manifest of a submission holds it."""
    return {"name": cell.name, "folder": cell.key, "config": cell.config.to_dict()}
