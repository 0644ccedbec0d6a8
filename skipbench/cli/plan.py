"""Shared by the commands on experiments: their request, and `--plan`."""

from collections.abc import Sequence

from skipbench.cli.commands import Experiments, Status
from skipbench.config.explain import did_you_mean
from skipbench.config.hardware import Slurm
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import Cost, cost_of, gpu_of, plan_lines
from skipbench.experiments.plan import Request, cells_of, hardware_of, scale_of
from skipbench.launch.submit import bill_line
from skipbench.runs.provenance import config_hash


def request_of(asked: Experiments, known: Sequence[str]) -> Request:
    """The experiments, of those that are known, and the cells of them.

    Raises:
        SkipbenchError: no name, an unknown name or hardware.
    """
    command = type(asked).__name__.lower()
    if not asked.words:
        raise SkipbenchError(f"{command} needs an experiment; known: {', '.join(known)}")
    for name in asked.words:
        if name not in known:
            raise SkipbenchError(
                f"{command} needs an experiment, not {name!r}.{did_you_mean(name, list(known))} "
                "They are listed by python -m skipbench list experiments"
            )
    hardware, scale, overrides = hardware_of(asked.settings), asked.scale, asked.settings
    if scale is None and isinstance(hardware, Slurm):  # this machine's GPUs say nothing of its own
        scale = "embedded" if hardware.gpus == 0 else "paper"
    if isinstance(asked, Status):  # the configuration of a submitted cell is without hardware
        overrides = tuple(w for w in overrides if not w.startswith("hardware"))
    return Request(
        asked.words, overrides, scale, asked.models, asked.budget, asked.columns, hardware
    )


def show_plan(request: Request) -> None:
    """Prints every cell of the experiments once, with prompts, GPUs, memory and hours, the sums,
    and what all of them take and are charged.
    """
    gpu = gpu_of(request.hardware)
    gpus = request.hardware.gpus if request.hardware is not None else None
    taken: set[str] = set()
    total: list[Cost | None] = []
    for name in request.names:
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
    show(bill_line(total, request.hardware)[0])
