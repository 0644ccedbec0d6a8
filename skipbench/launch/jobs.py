"""Jobs of a submission: arms of one row that have to run, in one process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skipbench.config.hardware import Local, Slurm
from skipbench.errors import SkipbenchError
from skipbench.experiments.blocks import blocks_of, costs_of
from skipbench.experiments.costs import Cost, bill, gpu_of
from skipbench.launch import local
from skipbench.launch.status import key_of, search_of
from skipbench.runs.cell import Cell

UNASKED_H = 100.0  # GPU-hours that are submitted without permission


@dataclass(frozen=True)
class Job:
    """Cells of one row, and what they cost; `None` for a model of unknown size."""

    cells: Sequence[Cell]
    cost: Cost | None = None

    @property
    def name(self) -> str:
        """Model, methods and dataset, and the overrides that all cells have in their names."""
        names = self.cells[0].config.names
        methods = dict.fromkeys(cell.config.method.name for cell in self.cells)
        first, *others = (cell.name.split()[len(names) :] for cell in self.cells)
        shared = [word for word in first if all(word in words for words in others)]
        return " ".join([*(names | {"method": ",".join(methods)}).values(), *shared])

    @property
    def gpus(self) -> int:
        return 1 if (gpus := self.cells[0].gpus) is None else gpus

    @property
    def searches(self) -> dict[str, int]:
        """The searches that are missing, each with its number of sets."""
        found: dict[str, int] = {}
        for cell in self.cells:
            if not cell.filled and cell.config.search_dataset is not None:
                sets, search = cell.config.search.iterations, search_of(cell)
                found[search] = max(sets, found.get(search, 0))
        return found

    def record(self) -> dict[str, Any]:
        """The job as the manifest of a submission holds it."""
        folders = [key_of(cell) for cell in self.cells]
        configs = [cell.config.to_dict() for cell in self.cells]
        names = [cell.name for cell in self.cells]
        return {"name": self.name, "folders": folders, "names": names, "configs": configs}


def jobs_of(cells: Sequence[Cell], hardware: Slurm | Local | None) -> list[Job]:
    """A job per row of cells, or per block of its arms; whole rows where one process runs them."""
    blocks = blocks_of(cells, cut=hardware is not None)
    costs = costs_of(blocks, gpu_of(hardware))
    return [Job(block, cost) for block, cost in zip(blocks, costs, strict=True)]


def schedule_stages(jobs: Sequence[Job]) -> list[list[Job]]:
    """Splits jobs into stages, one after another, so that no two of a stage do the same search. Of
    those that share one, that of most sets goes first.
    """
    stages, done = list[list[Job]](), dict[str, int]()
    left = sorted(jobs, key=lambda job: -max(job.searches.values(), default=0))
    while left:
        now, begun = list[Job](), dict[str, int]()
        for job in left:
            missing = {k: sets for k, sets in job.searches.items() if sets > done.get(k, 0)}
            if missing.keys().isdisjoint(begun):
                begun |= missing
                now.append(job)
        taken = {id(job) for job in now}
        stages.append([job for job in jobs if id(job) in taken])
        left = [job for job in left if id(job) not in taken]
        done |= begun
    return stages


def bill_of(costs: Sequence[Cost | None], hardware: Slurm | Local | None) -> tuple[float, float]:
    """Hours until all jobs of known cost are done on one node, on this machine, or (None) by one
    process, row after row; and the GPU-hours charged.
    """
    gpus, exclusive = 1, False
    if isinstance(hardware, Slurm):
        gpus, exclusive = hardware.node_gpus, hardware.exclusive
    elif hardware is not None:
        gpus = max(1, len(local.gpus()))
    return bill(_known(costs, hardware), gpus, exclusive)


def _known(costs: Sequence[Cost | None], hardware: Slurm | Local | None) -> list[Cost]:
    on_gpus = hardware is None or hardware.gpus != 0
    return [cost for cost in costs if cost is not None and cost.gpus and on_gpus]


def bill_line(costs: Sequence[Cost | None], hardware: Slurm | Local | None) -> str:
    """`bill_of` in a line."""
    hours, charged = bill_of(costs, hardware)
    known, what = _known(costs, hardware), "rows" if hardware is None else "jobs"
    where = "one row after another"
    if isinstance(hardware, Slurm):
        where = f"on one node of {hardware.node_gpus} GPUs"
    elif hardware is not None:
        where = f"on this machine, as with {max(1, len(local.gpus()))} GPUs"
    line = f"all: {len(costs)} {what}, about {hours:.1f} h wall-clock {where}, at most "
    line += f"{charged:.1f} GPU-hours charged"
    if isinstance(hardware, Slurm) and hardware.exclusive:
        line += f" for whole nodes, {sum(c.gpu_hours for c in known):.1f} of them used"
    if unknown := len(costs) - len(known):
        line += f"; {unknown} {what} are not counted: their time is not known"
    return line


def within_bill(made: list[Job], hardware: Slurm, allowed_h: float | None, confirm: str) -> str:
    """The line of what jobs cost. Raises SkipbenchError for more than `allowed_h`."""
    costs = [job.cost for job in made]
    charged = bill_of(costs, hardware)[1]
    if allowed_h is not None and charged > allowed_h:
        raise SkipbenchError(
            f"at most {charged:.1f} GPU-hours would be charged, above the {allowed_h:g} that need "
            f"no confirmation; nothing is submitted; see them with --plan, then give {confirm}"
        )
    return bill_line(costs, hardware)
