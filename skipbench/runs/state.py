"""What became of a run: its record's word, and whether the process that wrote it still lives."""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import printable, read_json
from skipbench.runs.shapes import Status

STALE_S = 1800.0
"""Seconds without a sign of life after which a process on another machine counts as dead; one
sample must fit.
"""
STATES = ("done", "failed", "running", "queued", "interrupted", "stale", "missing")


@dataclass(frozen=True)
class RunState:
    """`state` is one of `STATES`; `reason` says why it is not done."""

    state: str
    reason: str | None = None


def run_state(folder: Path, jobs: Mapping[str, str] | None, stale_s: float = STALE_S) -> RunState:
    """The state of the run in `folder`.

    Args:
        jobs: Slurm's jobs, id to state such as `PENDING`; `None` where Slurm does not answer.
        stale_s: seconds without a sign of life that are too many.
    """
    path = folder / "status.json"
    try:
        said = read_json(path, Status)
        age = time.time() - path.lstat().st_mtime if said else 0.0
    except SkipbenchError as error:
        return RunState("failed", str(error))
    except OSError:  # it has gone since
        said = None
    if said is None:
        return RunState("missing")
    state = said["state"]
    if state in ("done", "failed", "interrupted"):
        return RunState(state, None if state == "done" else printable(str(said.get("error"))))
    if state != "running":
        return RunState("failed", f"{path} names no state")
    job = said.get("slurm")
    if jobs is not None and job is not None and jobs.get(str(job)) == "PENDING":
        return RunState("queued", printable(f"Slurm job {job} was requeued"))
    if why := _death(said, age, jobs, stale_s):
        return RunState("stale", printable(why))
    return RunState("running", printable(f"pid {said.get('pid')} on {said.get('host')}"))


def _death(
    said: Mapping[str, object], age: float, jobs: Mapping[str, str] | None, stale_s: float
) -> str | None:
    """Why a run that says it is running cannot be."""
    job, pid = said.get("slurm"), said.get("pid")
    if said.get("host") == socket.gethostname() and isinstance(pid, int) and not _alive(pid):
        return f"process {pid} is gone: it was killed, perhaps for memory"
    if jobs is not None and job is not None and str(job) not in jobs:
        return f"Slurm job {job} on {said.get('host')} is gone: it was killed, or its node was lost"
    if age > stale_s:
        return (
            f"pid {said.get('pid')} on {said.get('host')} gave no sign of life for "
            f"{age / 60:.0f} minutes"
        )
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:
        return True
    except PermissionError:
        pass
    try:  # what has ended, and whose parent has not asked how, still has its number
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True
