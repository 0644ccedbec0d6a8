"""`status`, `submit`, and for all commands on experiments their request and `--plan`."""

import contextlib
import sys
from collections.abc import Sequence

from skipbench.cli.commands import Experiments, Status, Submit
from skipbench.config.catalog import choices, places
from skipbench.config.compose import compose
from skipbench.config.explain import did_you_mean
from skipbench.config.hardware import Slurm
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import Cost, budget_hours, cost_of, gpu_of, plan_lines
from skipbench.experiments.plan import Request, cells_of, hardware_of, scale_of
from skipbench.launch.status import command_line, counts, experiment_statuses
from skipbench.launch.submit import UNASKED_H, bill_line, submit, turn
from skipbench.runs.provenance import config_hash
from skipbench.runs.state import STATES


def request_of(asked: Experiments, known: Sequence[str]) -> Request:
    """The experiments, of those that are known, and the cells of them."""
    command = type(asked).__name__.lower()
    if not asked.words:
        raise SkipbenchError(f"{command} needs an experiment; known: {', '.join(known)}")
    if unknown := [name for name in asked.words if name not in known]:
        raise SkipbenchError(
            f"{command} needs an experiment, not {unknown[0]!r}."
            f"{did_you_mean(unknown[0], list(known))} "
            "They are listed by python -m skipbench list experiments"
        )
    hardware, scale, overrides = hardware_of(asked.settings), asked.scale, asked.settings
    if scale is None and isinstance(hardware, Slurm):  # this machine's GPUs say nothing of its own
        scale = "embedded" if hardware.gpus == 0 else "paper"
    if isinstance(asked, Status):  # the configuration of a submitted cell is without hardware
        overrides = tuple(w for w in overrides if not w.startswith("hardware"))
    return Request(asked.words, overrides, scale, asked.models, asked.budget, hardware)


def show_plan(request: Request) -> None:
    """Prints every cell of the experiments once, with its cost, and the sums."""
    gpu = gpu_of(request.hardware)
    gpus = request.hardware.gpus if request.hardware is not None else None
    taken: set[str] = set()
    total: list[Cost | None] = []
    for name in request.names:
        scale = scale_of(name, request.scale)
        costs, repeated = list[tuple[str, Cost | None]](), 0
        planned = cells_of(name, request, scale)
        for cell, config in ((c, one) for c, whole in planned for one in whole.repetitions()):
            key = config_hash(config.record() | {"search": config.search_record()})
            if key in taken:
                repeated += 1
            else:
                taken.add(key)
                costs.append((cell.name, cost_of(config, gpu, gpus)))
        show(f"{name} scale={scale}" + (f": {repeated} cells stand above" if repeated else ""))
        for line in plan_lines([label for label, _ in costs], [cost for _, cost in costs], gpu):
            show(line)
        total += [cost for _, cost in costs]
    show(bill_line(total, request.hardware)[0])


def run_status(asked: Status) -> None:
    """Prints the states and the command that runs the rest; exits with 1 unless all is done."""
    request = request_of(asked, choices("experiment"))
    if asked.plan:
        show_plan(request)
        return
    undone = False
    for name in request.names:
        cells = experiment_statuses(name, request, asked.stale)
        show(f"{name}: {counts(cells)}")
        left = [cell for cell in cells if cell.state.state != "done"]
        for cell in sorted(left, key=lambda cell: STATES.index(cell.state.state)):
            reason = f": {cell.state.reason}" if cell.state.reason else ""
            show(f"{cell.state.state:<12}{cell.name}{reason}")
        if unknown := sum(cell.unknown for cell in cells):
            show(f"squeue does not answer: {unknown} of them were submitted and may be queued")
        undone |= bool(left)
        if any(cell.to_run for cell in cells):
            command = "submit" if request.hardware else "table"
            show(f"to run them: {command_line(command, name, asked.given)}")
    if undone:
        sys.exit(1)


def run_submit(asked: Submit) -> None:
    """Submits sbatch arrays, or runs cells here with `hardware=local`; exits with 1 when a cell
    failed here. More GPU-hours than `budget=`, 100 without one, take `--yes`.
    """
    request = request_of(asked, choices("experiment"))
    if asked.plan:
        show_plan(request)
        return
    if request.hardware is None:
        raise SkipbenchError(
            f"submit needs hardware=NAME, one of: {', '.join(places())}; or a file of your "
            "own in conf/hardware"
        )
    if any(w.startswith("fresh=") for w in asked.settings):
        raise SkipbenchError(
            "submit takes no fresh=: a job that is requeued would start anew each time; use "
            "results=FOLDER, or table"
        )

    def sent(name: str) -> None:
        if not asked.print:
            show(f"see: {command_line('status', name, asked.given)}")

    with contextlib.ExitStack() as stack:
        if isinstance(request.hardware, Slurm) and not asked.print:
            folder = [w for w in asked.settings if w.startswith("results=")]
            stack.enter_context(turn(compose(folder).results))
        cells = ((n, experiment_statuses(n, request, asked.stale)) for n in request.names)
        hours = UNASKED_H if asked.budget is None else budget_hours(asked.budget)
        allowed_h = None if asked.yes else hours
        _, failed = submit(cells, request.hardware, allowed_h, only_print=asked.print, sent=sent)
    if failed:
        sys.exit(1)
