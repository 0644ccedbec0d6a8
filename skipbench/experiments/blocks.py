"""Rows cut into blocks of arms, each with vanilla, one per job, and what they cost."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skipbench.experiments.costs import Cost, Gpu, cost_of
from skipbench.experiments.set_search import search_trace
from skipbench.runs.cell import Cell, rows_of
from skipbench.runs.provenance import config_hash

MOST_ARMS = 9
"""Arms of a job, eight methods and vanilla's noise floor: the graphs of every number of tokens that
an arm verifies at once take memory of the GPU."""


def blocks_of(cells: Sequence[Cell], cut: bool = True) -> list[list[Cell]]:
    """The cells of each job: a row, or at most `MOST_ARMS` of its arms. Cells whose sets come from
    one search stay together, however many: where it ends at one set, they are one run. Without
    `cut` whole rows, which one process runs.
    """
    blocks = list[list[Cell]]()
    for row in rows_of(cells):
        together = defaultdict[object, list[Cell]](list)
        for at, cell in enumerate(row):
            config = cell.config
            together[at if config.search_dataset is None else search_trace(config)].append(cell)
        parts = -(-len(row) // MOST_ARMS) if cut else 1
        filled = list[Cell]()
        for unit in sorted(together.values(), key=lambda unit: -len(unit)):
            if filled and len(filled) + len(unit) > -(-len(row) // parts):
                blocks.append(filled)
                filled = []
            filled = [*filled, *unit]
        blocks.append(filled)
    return blocks


def costs_of(blocks: Sequence[Sequence[Cell]], gpu: Gpu) -> list[Cost | None]:
    """The cost of each block; of the cells that share a search that of most sets has its time."""
    longest: dict[Path, Cell] = {}
    for cell in (cell for block in blocks for cell in block):
        if cell.config.search_dataset is not None:
            first = longest.setdefault(trace := search_trace(cell.config), cell)
            longest[trace] = max(first, cell, key=lambda c: c.config.search.iterations)
    pays = {id(cell) for cell in longest.values()}
    found = list[Cost | None]()
    for block in blocks:
        cost = cost_of([cell.config for cell in block], gpu, block[0].gpus)
        if cost is not None:
            hours = zip(block, cost.search_h, strict=True)
            cost = replace(cost, search_h=tuple(h if id(c) in pays else 0.0 for c, h in hours))
        found.append(cost)
    return found


def unique(cells: Sequence[Cell]) -> list[Cell]:
    """All cells, each once, by the hash of what their runs depend on."""
    found: dict[str, Cell] = {}
    for cell in cells:
        own = {"search": cell.config.search_record(), "limit": cell.config.limit}
        found.setdefault(config_hash(cell.config.record() | own), cell)
    return [*found.values()]
