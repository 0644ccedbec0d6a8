"""`submit`, and for all commands on experiments their request."""

import contextlib
import sys
from collections.abc import Sequence

from skipbench.cli.commands import Experiments, Status, Submit
from skipbench.cli.plan import show_plan
from skipbench.config.catalog import choices, places
from skipbench.config.compose import compose
from skipbench.config.explain import did_you_mean
from skipbench.config.hardware import Slurm
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.experiments.grid import check_filter
from skipbench.experiments.plan import Request, grids_of, hardware_of
from skipbench.launch.jobs import UNASKED_H
from skipbench.launch.status import cell_statuses, command_line, named_cells
from skipbench.launch.submit import submit
from skipbench.runs.lock import held


def request_of(asked: Experiments, known: Sequence[str]) -> Request:
    """The experiments, of those that are known, and the cells of them."""
    command = type(asked).__name__.lower()
    if not asked.words:
        raise SkipbenchError(f"{command} needs an experiment; known: {', '.join(known)}")
    if unknown := [name for name in asked.words if name not in known]:
        whole = "-".join(asked.words)
        meant = whole if whole in known else unknown[0]
        raise SkipbenchError(
            f"{command} needs an experiment, not {unknown[0]!r}.{did_you_mean(meant, [*known])} "
            "They are listed by python -m skipbench list experiments"
        )
    names = [name for name in asked.words if name in choices("experiment")]
    own = [w for w in asked.settings if w.startswith(("model=", "method="))]
    check_filter(names, "model", asked.models, own)
    check_filter(names, "method", asked.methods, own)
    hardware, scale, overrides = hardware_of(asked.settings), asked.scale, asked.settings
    if scale is None and isinstance(hardware, Slurm):  # this machine's GPUs say nothing of its own
        scale = "embedded" if hardware.gpus == 0 else "paper"
    if isinstance(asked, Status):  # the configuration of a submitted cell is without hardware
        overrides = tuple(w for w in overrides if not w.startswith("hardware"))
    return Request(asked.words, overrides, scale, asked.models, asked.methods, hardware)


def run_submit(asked: Submit) -> None:
    """Submits sbatch arrays, or runs rows here with `hardware=local`; exits with 1 when a cell
    failed here. More than 100 GPU-hours take `--yes`.
    """
    request = request_of(asked, choices("experiment"))
    if asked.plan:
        show_plan(request, asked)
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
            show(f"see: {command_line('status', [name], asked.given)}")

    with contextlib.ExitStack() as stack:
        if isinstance(request.hardware, Slurm) and not asked.print:
            folder = [w for w in asked.settings if w.startswith("results=")]
            stack.enter_context(held(compose(folder).results.resolve() / "submit", wait=True))
        grids = grids_of(request)
        cells = ((grid.name, cell_statuses(*named_cells(grid), asked.stale)) for grid in grids)
        _, failed = submit(
            cells,
            request.hardware,
            None if asked.yes else UNASKED_H,
            only_print=asked.print,
            sent=sent,
            anyway=None if asked.anyway else "--anyway",
            words=[*asked.words, *asked.given],
        )
    if failed:
        sys.exit(1)
