"""`status`: what of experiments is done, failed, running, missing, and the command that runs the
rest.
"""

import sys

from skipbench.cli.plan import show_plan
from skipbench.console import show
from skipbench.launch.status import TO_RUN, cell_statuses, command_line, counts, parse_submit
from skipbench.runs.state import STATES


def run(arguments: list[str]) -> None:
    """Prints counts, and a line per cell that is not done.

    Raises:
        SkipbenchError: no such experiment.
        SystemExit: 1, unless every cell is done.
    """
    asked = parse_submit(arguments, "status", ("--plan",))
    if "--plan" in asked.request.flags:
        show_plan(asked.request.names, asked.request, asked.hardware)
        return
    undone = False
    for name in asked.request.names:
        cells = cell_statuses(name, asked)
        show(f"{name}: {counts(cells)}")
        for state in STATES[1:]:
            for cell in cells:
                if cell.state.state == state:
                    show(
                        f"{state:<12}{cell.name}"
                        + (f": {cell.state.reason}" if cell.state.reason else "")
                    )
        if unknown := sum(cell.unknown for cell in cells):
            show(f"squeue does not answer: {unknown} of them were submitted and may be queued")
        undone |= any(cell.state.state != "done" for cell in cells)
        if any(cell.state.state in TO_RUN and cell.runnable for cell in cells):
            show(
                "to run them: "
                f"{command_line('submit' if asked.hardware else 'table', name, asked.words)}"
            )
    if undone:
        sys.exit(1)
