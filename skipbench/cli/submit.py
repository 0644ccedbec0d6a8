"""`submit`: the missing cells of experiments on a cluster, or on the GPUs of this machine."""

import contextlib
import sys
from collections.abc import Sequence

from skipbench.cli.commands import Submit
from skipbench.cli.parser import parse
from skipbench.cli.plan import request_of, show_plan
from skipbench.config.catalog import choices, places
from skipbench.config.compose import compose
from skipbench.config.hardware import Slurm
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import budget_hours
from skipbench.launch.status import command_line, experiment_statuses
from skipbench.launch.submit import UNASKED_H, submit, turn


def run(arguments: Sequence[str]) -> None:
    """Submits sbatch arrays, or runs cells here with `hardware=local`; `--print` only shows the
    scripts or the cells. More GPU-hours than `budget=`, 100 without one, take `--yes`.

    Submissions to Slurm from one results folder take turns: each sees the jobs of those before.

    Raises:
        SkipbenchError: no such experiment or hardware, too many GPU-hours, Slurm refuses, or does
            not say which jobs are over.
        SystemExit: 1 when a cell failed that was run here.
    """
    asked = parse(Submit, arguments)
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
        allowed_h = UNASKED_H if asked.budget is None else budget_hours(asked.budget)
        _, failed = submit(
            cells,
            request.hardware,
            None if asked.yes else allowed_h,
            only_print=asked.print,
            sent=sent,
        )
    if failed:
        sys.exit(1)
