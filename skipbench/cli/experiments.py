"""`submit`, and the cells of all commands on experiments."""

import contextlib
import sys
from collections.abc import Sequence

from skipbench.cli.commands import Experiments, Status, Submit
from skipbench.cli.plan import show_plan
from skipbench.config.catalog import choices, places
from skipbench.config.explain import did_you_mean
from skipbench.config.hardware import Slurm
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.experiments.grid import check_filter
from skipbench.experiments.plan import cells_of, hardware_of, once
from skipbench.launch.jobs import UNASKED_H
from skipbench.launch.status import command_line, with_states
from skipbench.launch.submit import submit
from skipbench.runs.cell import Cell
from skipbench.runs.lock import held


def names_asked(asked: Experiments, known: Sequence[str]) -> list[str]:
    """The experiments that a command names. Raises SkipbenchError where one is not `known`, or has
    not the models and methods that are asked for.
    """
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
    return names


def cells_asked(
    asked: Experiments, known: Sequence[str], without_torch: bool = False
) -> dict[str, list[Cell]]:
    """The cells of the experiments that a command names, by their names. Arguments as of
    `scale_of`, errors as of `names_asked`.
    """
    names = names_asked(asked, known)
    hardware, scale, overrides = hardware_of(asked.settings), asked.scale, asked.settings
    if scale is None and isinstance(hardware, Slurm):  # this machine's GPUs say nothing of its own
        scale = "embedded" if hardware.gpus == 0 else "paper"
    if isinstance(asked, Status):  # the configuration of a submitted cell is without hardware
        overrides = tuple(w for w in overrides if not w.startswith("hardware"))
    return cells_of(names, overrides, scale, asked.models, asked.methods, without_torch)


def run_submit(asked: Submit) -> None:
    """Submits sbatch arrays, or runs rows here with `hardware=local`; exits with 1 when a cell
    failed here. More than 100 GPU-hours take `--yes`.
    """
    names_asked(asked, known := choices("experiment"))
    if asked.plan:
        show_plan(cells_asked(asked, known), asked)
        return
    if (hardware := hardware_of(asked.settings)) is None:
        raise SkipbenchError(
            f"submit needs hardware=NAME, one of: {', '.join(places())}; or a file of your "
            "own in conf/hardware"
        )
    if any(w.startswith("fresh=") for w in asked.settings):
        raise SkipbenchError(
            "submit takes no fresh=: a job that is requeued would start anew each time; use "
            "results=FOLDER, or table"
        )
    experiments = cells_asked(asked, known)
    cells = [cell for own in experiments.values() for cell in once(own)]
    only_print = asked.print or any(cell.config.dry_run for cell in cells)
    with contextlib.ExitStack() as stack:
        if cells and isinstance(hardware, Slurm) and not only_print:
            stack.enter_context(held(cells[0].config.results.resolve() / "submit", wait=True))
        _, failed = submit(
            ((name, with_states(once(own))) for name, own in experiments.items()),
            hardware,
            None if asked.yes else UNASKED_H,
            only_print=only_print,
            anyway=None if asked.anyway else "--anyway",
            words=[*asked.words, *asked.given],
        )
    for name in () if only_print else experiments:
        show(f"see: {command_line('status', [name], asked.given)}")
    if failed:
        sys.exit(1)
