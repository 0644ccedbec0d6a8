"""`--plan` of the commands on experiments: what their rows cost, before anything runs."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from skipbench.bench.memory import GIB
from skipbench.cli.commands import Planned
from skipbench.config.hardware import Local, Slurm
from skipbench.console import show
from skipbench.experiments.blocks import unique
from skipbench.experiments.costs import Cost, gpu_of
from skipbench.experiments.plan import hardware_of, once
from skipbench.launch.jobs import Job, bill_line, bill_of, jobs_of
from skipbench.runs.cell import Cell

HEAD = ("prompts", "GPUs", "memory", "hours", "GPU-hours", "")
LEGEND = "hours: of the longest row; noise floor: a cell of method=vanilla beside methods"
LIMITS = (10, 20, 40)  # prompts per row


def show_plan(experiments: Mapping[str, Sequence[Cell]], asked: Planned) -> None:
    """Prints a line per model of each experiment, with `--json` a line of JSON per row; each cell
    once, a row of several experiments with the first.
    """
    hardware = hardware_of(asked.settings)
    cells = unique([cell for own in experiments.values() for cell in once(own)])
    for cell in cells:
        cell.gpus = hardware.gpus if hardware else None
    jobs = jobs_of(cells, hardware)
    rows = defaultdict[str, list[Job]](list)
    for job in jobs:
        rows[job.cells[0].experiment].append(job)
    limit_h = hardware.limit_h if isinstance(hardware, Slurm) else None
    for name, own in experiments.items():
        if asked.json:
            for one in rows[name]:
                show(json.dumps({"experiment": name, **_record(one, limit_h)}))
            continue
        repeated = len(once(own)) - sum(cell.experiment == name for cell in cells)
        title = f"{name} scale={own[0].scale}" if own else name
        show(title + (f": {repeated} cells stand above" if repeated else ""))
        for line in _lines(rows[name], limit_h):
            show(line)
        known = [row.cost for row in rows[name] if row.cost is not None]
        count = sum(len(row.cells) for row in rows[name])
        total = f"sum: {count} cells in {len(rows[name])} rows, "
        total += f"{sum(c.gpus > 1 for c in known)} of several GPUs, at most "
        total += f"{sum(c.gpu_hours for c in known):.1f} GPU-hours on {gpu_of(hardware).name}"
        unknown = len(rows[name]) - len(known)
        show(total + (f"; {unknown} of models of unknown size" if unknown else ""))
    if not asked.json:
        costs = [job.cost for job in jobs]
        show(f"{LEGEND}; every row with --json")
        for line in _limits(costs, hardware):
            show(line)
        show(bill_line(costs, hardware))


def _lines(rows: Sequence[Job], limit_h: float | None) -> list[str]:
    """A table of the models."""
    groups = defaultdict[str, list[Job]](list)
    for row in rows:
        groups[row.cells[0].config.model.name].append(row)
    cells: list[tuple[str, ...]] = [("model", *HEAD)]
    for model, own in groups.items():
        known = [row.cost for row in own if row.cost is not None]
        figures = _figures(known, limit_h) if known else ["-"] * 5 + ["of unknown size"]
        cells.append((f"{model}, {len(own)} rows", *figures))
    return _aligned(cells)


def _limits(costs: Sequence[Cost | None], hardware: Slurm | Local | None) -> list[str]:
    """A table of what the first 10, 20 and 40 prompts of every row take, and all of them."""
    most = max((max(cost.prompts) for cost in costs if cost is not None), default=0)
    cells = [("", "GPU-hours", "wall-clock")]
    for limit in [*(n for n in LIMITS if n < most), most]:
        hours, charged = bill_of([cost and cost.at_most(limit) for cost in costs], hardware)
        name = f"limit={limit}" if limit < most else "all prompts"
        cells.append((name, f"{charged:.1f}", f"{hours:.1f} h"))
    return _aligned(cells) if len(cells) > 2 else []


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
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


def _record(job: Job, limit_h: float | None) -> dict[str, Any]:
    names = {"model": job.cells[0].config.model.name, "row": job.name}
    record: dict[str, Any] = names | {"arms": [cell.name for cell in job.cells]}
    if (cost := job.cost) is None:
        return record
    known = "prompts", "of", "gpus", "memory_bytes", "hours", "gpu_hours", "reason"
    record |= {name: getattr(cost, name) for name in known}
    return record | {"requeues": _requeues(cost, limit_h)}
