"""`runrow`: one row of a submitted manifest, in a process of its own, as a task of an array."""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from skipbench.cli.commands import RunRow
from skipbench.config.catalog import row_command
from skipbench.config.run_config import RunConfig
from skipbench.console import complain
from skipbench.errors import SkipbenchError, reason_of
from skipbench.experiments.resolve import fill_skip_set
from skipbench.experiments.row import run_rows
from skipbench.launch import manifest, slurm
from skipbench.launch.local import WATCHED, watch
from skipbench.runs.cell import Cell
from skipbench.runs.state import SIGNALS, Interrupted
from skipbench.runs.store import record_failure

EXIT_REPORTED = 3  # exit status of a watched cell that failed and wrote down why


def run_runrow(asked: RunRow) -> None:
    """Runs row NUMBER of MANIFEST under a second process that records how it died; exits with 1
    when a cell of it failed, with 128 + n when signal n asked for its end, or killed it.
    """
    path, number = asked.words
    if not number.isdecimal():
        raise SkipbenchError(f"runrow {RunRow.NEEDS}")
    cells = manifest.read_row(Path(path), int(number))
    if os.environ.get(WATCHED) == str(os.getppid()):
        sys.argv = manifest.command(Path(path).parent).argv or sys.argv
        _run_watched(cells)
        return
    code = watch(row_command(path, number), os.environ)
    if reason := exit_reason(code, cells[0].config, Path(path).parent):
        _fail(cells, reason)
    sys.exit(1 if code == EXIT_REPORTED else code if code >= 0 else 128 - code)


def _run_watched(cells: Sequence[Cell]) -> None:
    try:
        run_rows(cells)
        for cell in cells:
            if cell.error is not None:
                _fail([cell], _reason(cell.error, cell.config))
        failed = any(cell.error is not None for cell in cells)
    except Interrupted as stop:
        timed_out = stop.signal == signal.SIGUSR2
        complain(f"{stop}: {slurm.requeue_self() if timed_out else 'preempted or cancelled'}")
        sys.exit(128 + stop.signal)
    except Exception as error:  # whatever ended the row, its records must say so
        _fail(cells, _reason(error, cells[0].config))
        failed = True
    if failed:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        # without memory, libraries may fail or spin at the interpreter's end
        os._exit(EXIT_REPORTED)


def _fail(cells: Sequence[Cell], reason: str) -> None:
    for cell in cells:
        with contextlib.suppress(SkipbenchError):  # before its search is done a cell has no folder
            fill_skip_set(cell)
            record_failure(cell.folder, reason)
    complain(f"failed: {reason}")


def _reason(error: Exception, config: RunConfig) -> str:
    """The reason of a failure in a line."""
    text = reason_of(error)
    if isinstance(error, SkipbenchError):
        return text
    try:
        from skipbench.bench.memory import out_of_memory

        return out_of_memory(error, config.model, config.dataset.max_new_tokens) or text
    except Exception:  # without memory the advice may fail; the reason above must still be recorded
        return text + "; give the job more (hardware.memory=)" * isinstance(error, MemoryError)


def exit_reason(code: int, config: RunConfig, logs: Path) -> str | None:
    """Explains an exit status; `None` if the cell itself wrote a reason."""
    # A signal that was passed on may meet the child at its very end, when it has written down
    # already how it ended.
    passed_on = {end for number in SIGNALS for end in (-number, 128 + number)}
    if code in {0, EXIT_REPORTED, 128 + signal.SIGINT} | passed_on:
        return None
    if code > 0:
        why = f"ended with exit status {code} and left no reason, as where memory ends"
        return f"{why}; its log in {logs} may tell"
    text = f"killed by {signal.Signals(-code).name}"
    if -code != signal.SIGKILL:
        return text
    advice = _reason(MemoryError(), config)
    return f"{text}; where nobody sent it, it was the kernel, for memory: {advice}"
