"""`--plan` of the commands on experiments: what their rows cost, before anything runs."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from skipbench.bench.memory import GIB
from skipbench.cli.commands import Planned
from skipbench.config.hardware import Slurm
from skipbench.config.run_config import RunConfig
from skipbench.console import show
from skipbench.experiments.blocks import blocks_of, costs_of, unique, within
from skipbench.experiments.costs import Cost, gpu_of, half_width
from skipbench.experiments.grid import PlannedCell
from skipbench.experiments.plan import Request, grids_of
from skipbench.launch.jobs import bill_line

HEAD = ("prompts", "half width", "GPUs", "memory", "hours", "GPU-hours", "")
LEGEND = (
    "half width: of a speedup's 95 % interval, as a share of it; noise floor: vanilla over itself, "
    "a cell of method=vanilla beside methods; hours: of the longest row"
)


class _Row(NamedTuple):
    model: str
    name: str  # the overrides of all its arms
    arms: list[str]
    cost: Cost | None  # None for a model of unknown size


def show_plan(request: Request, asked: Planned) -> None:
    """Prints a line per model of each experiment, with `--json` a line of JSON per row; each cell
    once, a row of several experiments with the first.
    """
    gpu, hardware = gpu_of(request.hardware), request.hardware
    cells: dict[str, tuple[str, PlannedCell, RunConfig]] = {}
    titles, repeated = dict[str, str](), Counter[str]()
    for grid in grids_of(request):
        name = grid.name
        titles[name] = f"{name} scale={grid.scale}"
        for cell, whole in grid.cells:
            for key, config in unique([whole]).items():
                repeated[name] += key in cells
                cells.setdefault(key, (name, cell, config))
    configs = [config for _, _, config in cells.values()]
    if hardware is None:
        blocks = blocks_of(configs, cut=False)
        costs = costs_of(configs, blocks, gpu)
    else:
        blocks, costs = within(configs, hardware, [hardware.gpus] * len(configs))
    every = [*cells.values()]
    rows = defaultdict[str, list[_Row]](list)
    for block, cost in zip(blocks, costs, strict=True):
        row, arms = row_and_arms([every[at][1] for at in block])
        rows[every[block[0]][0]].append(_Row(configs[block[0]].model.name, row, arms, cost))
    limit_h = hardware.limit_h if isinstance(hardware, Slurm) else None
    for name, title in titles.items():
        if asked.json:
            for one in rows[name]:
                show(json.dumps({"experiment": name, **_record(one, limit_h)}))
            continue
        show(title + (f": {n} cells stand above" if (n := repeated[name]) else ""))
        for line in _lines(rows[name], limit_h):
            show(line)
        known = [row.cost for row in rows[name] if row.cost is not None]
        total = f"sum: {sum(len(row.arms) for row in rows[name])} cells in {len(rows[name])} rows, "
        total += f"{sum(c.gpus > 1 for c in known)} of several GPUs, at most "
        total += f"{sum(c.gpu_hours for c in known):.1f} GPU-hours on {gpu.name}"
        unknown = len(rows[name]) - len(known)
        show(total + (f"; {unknown} of models of unknown size" if unknown else ""))
    if not asked.json:
        show(f"{LEGEND}; every row with --json")
        show(bill_line(costs, hardware)[0])


def row_and_arms(cells: Sequence[PlannedCell]) -> tuple[str, list[str]]:
    """The overrides that all cells of a row have, and those of each arm but its prompts."""
    shared = {k: v for k, v in cells[0].overrides.items() if k not in ("method", "hardware")}
    for cell in cells:
        shared = {k: v for k, v in shared.items() if cell.overrides.get(k) == v}
    left_out = {*shared, "hardware", "limit"}
    arms = ({k: v for k, v in c.overrides.items() if k not in left_out} for c in cells)
    row, *rest = (" ".join(f"{k}={v}" for k, v in words.items()) for words in (shared, *arms))
    return row, rest


def _lines(rows: Sequence[_Row], limit_h: float | None) -> list[str]:
    """A table of the models."""
    groups = defaultdict[str, list[_Row]](list)
    for row in rows:
        groups[row.model].append(row)
    cells: list[tuple[str, ...]] = [("model", *HEAD)]
    for model, own in groups.items():
        known = [row.cost for row in own if row.cost is not None]
        figures = _figures(known, limit_h) if known else ["-"] * 6 + ["of unknown size"]
        cells.append((f"{model}, {len(own)} rows", *figures))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(t.ljust(w) for t, w in zip(c, widths, strict=True)).rstrip() for c in cells]


def _figures(costs: Sequence[Cost], limit_h: float | None) -> list[str]:
    """What rows cost, in the columns of `HEAD`: ranges, hours of the longest, sum of GPU-hours."""
    most, hours = [max(cost.prompts) for cost in costs], max(cost.hours for cost in costs)
    of, requeues = [cost.of for cost in costs], max(_requeues(cost, limit_h) for cost in costs)
    up_to = "up to " if len(costs) > 1 else ""
    notes = [f"requeues: {up_to}{requeues}"] if requeues else []
    notes += dict.fromkeys(cost.reason for cost in costs if cost.reason)
    return [
        _span(most) + (f" of {_span(of)}" if most != of else ""),
        f"{_span([100 * half_width(n) for n in most], 1)} %",
        _span([cost.gpus for cost in costs]),
        f"{_span([cost.memory_bytes / GIB for cost in costs], 1)} GiB",
        f"{hours:.2f}",
        f"{sum(cost.gpu_hours for cost in costs):.2f}",
        "; ".join(notes),
    ]


def _span(values: Sequence[float], digits: int = 0) -> str:
    """`80 to 1000`, or the one value that all have."""
    return " to ".join(dict.fromkeys(f"{end:.{digits}f}" for end in (min(values), max(values))))


def _requeues(cost: Cost, limit_h: float | None) -> int:
    """How often a time limit in hours ends a job of these hours before it is done."""
    return int(cost.hours / limit_h) if limit_h else 0


def _record(row: _Row, limit_h: float | None) -> dict[str, Any]:
    record: dict[str, Any] = {"model": row.model, "row": row.name, "arms": row.arms}
    if (cost := row.cost) is None:
        return record
    known = "prompts", "of", "gpus", "memory_bytes", "hours", "gpu_hours", "reason"
    record |= {name: getattr(cost, name) for name in known}
    more = {"half_width": half_width(max(cost.prompts)), "requeues": _requeues(cost, limit_h)}
    return record | more
