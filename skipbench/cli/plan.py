"""`--plan` of `table`, `submit` and `status`: what experiments cost, without running anything."""

from collections.abc import Sequence

from skipbench.config.hardware import Local, Slurm
from skipbench.experiments.costs import Cost, cost_of, gpu_of, plan_lines
from skipbench.experiments.plan import Request, cells_of, scale_of
from skipbench.report.console import show
from skipbench.runs.provenance import config_hash


def show_plan(names: Sequence[str], request: Request, hardware: Slurm | Local | None) -> None:
    """Prints every cell of the experiments once, with prompts, GPUs, memory and hours, and the
    sums.
    """
    gpu = gpu_of(hardware)
    gpus = hardware.gpus if hardware is not None else None
    taken: set[str] = set()
    total: list[Cost] = []
    for name in names:
        scale = scale_of(name, request.scale)
        labels, costs = list[str](), list[Cost | None]()
        repeated = 0
        for cell, config in cells_of(name, request, scale):
            key = config_hash(config.record() | {"search": config.search_record()})
            repeated += key in taken
            if key not in taken:
                taken.add(key)
                labels.append(cell.name)
                costs.append(cost_of(config, gpu, gpus))
        show(f"{name} scale={scale}" + (f": {repeated} cells stand above" if repeated else ""))
        for line in plan_lines(labels, costs, gpu):
            show(line)
        total += [cost for cost in costs if cost is not None]
    if len(names) > 1:
        show(
            f"all: {len(taken)} cells, {sum(c.gpus > 1 for c in total)} of several GPUs, at most "
            f"{sum(c.gpu_hours for c in total):.1f} GPU-hours"
        )
