"""What experiments cost, without running anything: `--plan` of `table`, `submit` and `status`."""

from collections.abc import Sequence

from skipbench.config.hardware import Local, Slurm
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import Cost, bill, cost_of, gpu_of, plan_lines
from skipbench.experiments.plan import Request, cells_of, scale_of
from skipbench.launch import local
from skipbench.runs.provenance import config_hash


def show_plan(names: Sequence[str], request: Request, hardware: Slurm | Local | None) -> None:
    """Prints every cell of the experiments once, with prompts, GPUs, memory and hours, the sums,
    and what all of them take and are charged.
    """
    gpu = gpu_of(hardware)
    gpus = hardware.gpus if hardware is not None else None
    taken: set[str] = set()
    total: list[Cost | None] = []
    for name in names:
        scale = scale_of(name, request.scale)
        labels, costs = list[str](), list[Cost | None]()
        repeated = 0
        planned = cells_of(name, request, scale)
        for cell, config in ((c, one) for c, whole in planned for one in whole.repetitions()):
            key = config_hash(config.record() | {"search": config.search_record()})
            repeated += key in taken
            if key not in taken:
                taken.add(key)
                labels.append(cell.name)
                costs.append(cost_of(config, gpu, gpus))
        show(f"{name} scale={scale}" + (f": {repeated} cells stand above" if repeated else ""))
        for line in plan_lines(labels, costs, gpu):
            show(line)
        total += costs
    show(bill_line(total, hardware)[0])


def bill_line(costs: Sequence[Cost | None], hardware: Slurm | Local | None) -> tuple[str, float]:
    """What cells take together, in a line, and the GPU-hours charged for them.

    Args:
        hardware: `None` where one process runs them, one after another.
    """
    gpus, where = 1, "one cell after another"
    if isinstance(hardware, Slurm):
        if (gpus := hardware.node_gpus) < 1:
            raise SkipbenchError(f"hardware.node_gpus={gpus}; wanted 1 or more")
        where = f"on one node of {gpus} GPUs"
    elif hardware is not None:
        gpus = max(1, len(local.gpus()))
        where = f"on this machine, as with {gpus} GPUs"
    on_gpus = hardware is None or hardware.gpus != 0
    known = [cost for cost in costs if cost is not None and cost.gpus and on_gpus]
    exclusive = isinstance(hardware, Slurm) and hardware.exclusive
    hours, charged = bill(known, gpus, exclusive)
    line = (
        f"all: {len(costs)} cells, about {hours:.1f} h wall-clock {where}, at most {charged:.1f} "
        "GPU-hours charged"
    )
    if exclusive:
        line += f" for whole nodes, {sum(c.gpu_hours for c in known):.1f} of them used"
    if unknown := len(costs) - len(known):
        line += f"; {unknown} cells are not counted: their time is not known"
    return line, charged
