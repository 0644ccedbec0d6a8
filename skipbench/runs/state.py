"""What became of a run: its record's word, and whether the process that wrote it still lives."""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.files import write_json
from skipbench.runs.reading import Text, printable, read_json

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


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`status.json`: what a run's process said of it last."""

    state: Text
    error: str | None = None
    pid: int | None = None
    host: Text | None = None
    updated: Text | None = None
    slurm: Text | None = None
    """Job."""
    sha256: dict[Text, Text] = {}
    """Digests of the files of a done run."""

    @property
    def done(self) -> bool:
        return self.state == "done"

    @classmethod
    def now(
        cls, state: str, error: str | None = None, sha256: Mapping[str, str] | None = None
    ) -> "Status":
        """Of this process."""
        return cls(
            state=state,
            error=error,
            pid=os.getpid(),
            host=socket.gethostname(),
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
            slurm=os.environ.get("SLURM_JOB_ID"),
            sha256=dict(sha256 or {}),
        )


NO_STATUS = Status(state="missing")


def read_status(folder: Path) -> Status:
    """The status of the run in `folder`; `missing` without one.

    Raises:
        SkipbenchError: it cannot be read.
    """
    status: Status = read_json(folder / "status.json", Status) or NO_STATUS
    return status


def write_status(folder: Path, status: Status) -> None:
    plain = msgspec.to_builtins(status)
    if not status.sha256:
        del plain["sha256"]
    write_json(folder / "status.json", plain)


def run_state(folder: Path, jobs: Mapping[str, str] | None, stale_s: float = STALE_S) -> RunState:
    """The state of the run in `folder`.

    Args:
        jobs: Slurm's jobs, id to state such as `PENDING`; `None` where Slurm does not answer.
        stale_s: seconds without a sign of life that are too many.
    """
    path = folder / "status.json"
    try:
        status = read_status(folder)
        age = time.time() - path.lstat().st_mtime if status.state != "missing" else 0.0
    except SkipbenchError as error:
        return RunState("failed", str(error))
    except OSError:  # it has gone since
        status = NO_STATUS
    if status.state in ("done", "missing"):
        return RunState(status.state)
    if status.state in ("failed", "interrupted"):
        return RunState(status.state, printable(str(status.error)))
    if status.state != "running":
        return RunState("failed", f"{path} names no state")
    if jobs is not None and status.slurm and jobs.get(status.slurm) == "PENDING":
        return RunState("queued", printable(f"Slurm job {status.slurm} was requeued"))
    if why := _death(status, age, jobs, stale_s):
        return RunState("stale", printable(why))
    return RunState("running", printable(f"pid {status.pid} on {status.host}"))


def _death(
    status: Status, age: float, jobs: Mapping[str, str] | None, stale_s: float
) -> str | None:
    """Why a run that says it is running cannot be."""
    pid, host, job = status.pid, status.host, status.slurm
    if host == socket.gethostname() and pid is not None and not _alive(pid):
        return f"process {pid} is gone: it was killed, perhaps for memory"
    if jobs is not None and job is not None and job not in jobs:
        return f"Slurm job {job} on {host} is gone: it was killed, or its node was lost"
    if age > stale_s:
        return f"pid {pid} on {host} gave no sign of life for {age / 60:.0f} minutes"
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
