"""Rows cut into blocks of arms, each with vanilla, one per job, and what they cost."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skipbench.config.hardware import Local, Slurm
from skipbench.config.run_config import RunConfig
from skipbench.experiments.costs import (
    Cost,
    Gpu,
    cost_of,
    gpu_of,
)
from skipbench.experiments.row import rows_of
from skipbench.experiments.set_search import search_trace
from skipbench.runs.provenance import config_hash

MOST_ARMS = 9
"""Arms of a job, eight methods and vanilla's noise floor: the graphs of every number of tokens that
an arm verifies at once take memory of the GPU."""


def blocks_of(configs: Sequence[RunConfig], cut: bool = True) -> list[list[int]]:
    """Positions of the cells of each job: a row, or at most `MOST_ARMS` of its arms. Cells whose
    sets come from one search stay together, however many: where it ends at one set, they are one
    run.

    Args:
        cut: False for whole rows, which one process runs.
    """
    blocks = list[list[int]]()
    for row in rows_of(configs):
        together = defaultdict[object, list[int]](list)
        for at in row:
            config = configs[at]
            together[at if config.search_dataset is None else search_trace(config)].append(at)
        parts = -(-len(row) // MOST_ARMS) if cut else 1
        filled = list[int]()
        for unit in sorted(together.values(), key=lambda unit: -len(unit)):
            if filled and len(filled) + len(unit) > -(-len(row) // parts):
                blocks.append(filled)
                filled = []
            filled = [*filled, *unit]
        blocks.append(filled)
    return blocks


def costs_of(
    configs: Sequence[RunConfig],
    blocks: Sequence[Sequence[int]],
    gpu: Gpu,
    gpus: Sequence[int | None] | None = None,
) -> list[Cost | None]:
    """The cost of each block; of the cells that share a search, the one of most sets has its time.
    `gpus`: of each cell, where the user chose.
    """
    longest: dict[Path, int] = {}
    for at in (at for block in blocks for at in block if configs[at].search_dataset is not None):
        first = longest.setdefault(search_trace(configs[at]), at)
        if configs[at].search.iterations > configs[first].search.iterations:
            longest[search_trace(configs[at])] = at
    found = list[Cost | None]()
    for block in blocks:
        cost = cost_of([configs[at] for at in block], gpu, None if gpus is None else gpus[block[0]])
        if cost is not None:
            hours = zip(block, cost.search_h, strict=True)
            own = tuple(h if at in longest.values() else 0.0 for at, h in hours)
            cost = replace(cost, search_h=own)
        found.append(cost)
    return found


def within(
    configs: Sequence[RunConfig],
    hardware: Slurm | Local | None,
    gpus: Sequence[int | None] | None = None,
) -> tuple[list[list[int]], list[Cost | None]]:
    """The blocks of jobs, and their costs."""
    blocks = blocks_of(configs)
    return blocks, costs_of(configs, blocks, gpu_of(hardware), gpus)


def unique(configs: Sequence[RunConfig]) -> dict[str, RunConfig]:
    """All cells, each once, by the hash of what their runs depend on."""
    return {config_hash(one.record() | {"search": one.search_record()}): one for one in configs}
