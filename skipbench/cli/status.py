"""`status`: what of experiments is done, failed, running, missing, and the command that runs the
rest.
"""

import sys
from collections.abc import Sequence

from skipbench.cli.commands import Status
from skipbench.cli.parser import parse
from skipbench.cli.plan import request_of, show_plan
from skipbench.config.catalog import choices
from skipbench.console import show
from skipbench.launch.status import (
    TO_RUN,
    command_line,
    counts,
    experiment_statuses,
)
from skipbench.runs.state import STATES


def run(arguments: Sequence[str]) -> None:
    """Prints counts, and a line per cell that is not done.

    Raises:
        SkipbenchError: no such experiment.
        SystemExit: 1, unless every cell is done.
    """
    asked = parse(Status, arguments)
    request = request_of(asked, choices("experiment"))
    if asked.plan:
        show_plan(request)
        return
    undone = False
    for name in request.names:
        cells = experiment_statuses(name, request, asked.stale)
        show(f"{name}: {counts(cells)}")
        for state in STATES[1:]:
            for cell in cells:
                if cell.state.state == state:
                    reason = f": {cell.state.reason}" if cell.state.reason else ""
                    show(f"{state:<12}{cell.name}{reason}")
        if unknown := sum(cell.unknown for cell in cells):
            show(f"squeue does not answer: {unknown} of them were submitted and may be queued")
        undone |= any(cell.state.state != "done" for cell in cells)
        if any(cell.state.state in TO_RUN and cell.runnable for cell in cells):
            command = "submit" if request.hardware else "table"
            show(f"to run them: {command_line(command, name, asked.given)}")
    if undone:
        sys.exit(1)
