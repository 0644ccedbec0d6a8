"""The state of a run: `status.json`, its process, and the signals that ask it to end."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import msgspec

from skipbench.errors import SkipbenchError, printable
from skipbench.runs.files import write_json
from skipbench.runs.reading import read_json

STALE_S = 1800.0  # without a sign of life, more than of any sample, a process counts as dead
STATES = ("done", "failed", "running", "queued", "interrupted", "stale", "missing")


@dataclass(frozen=True)
class RunState:
    """`state` is one of `STATES`; `reason` says why it is not done."""

    state: str
    reason: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`status.json`, as a run's process wrote it last."""

    state: str
    error: str | None = None
    pid: int | None = None
    host: str | None = None
    updated: str | None = None
    slurm: str | None = None  # job
    prompts: int | None = None  # turns that the run has when it is done
    limit: int | None = None  # questions that were asked for; None: all

    @property
    def done(self) -> bool:
        return self.state == "done"

    @classmethod
    def now(cls, state: str, error: str | None = None) -> "Status":
        """The status of this process."""
        return cls(
            state=state,
            error=error,
            pid=os.getpid(),
            host=socket.gethostname(),
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
            slurm=os.environ.get("SLURM_JOB_ID"),
        )


NO_STATUS = Status(state="missing")


def read_status(folder: Path) -> Status:
    """The status of the run in `folder`, `missing` without one; raises SkipbenchError."""
    return read_json(folder / "status.json", Status) or NO_STATUS


def write_status(folder: Path, status: Status) -> None:
    """Writes `status.json`. Raises SkipbenchError if it cannot."""
    write_json(folder / "status.json", msgspec.structs.asdict(status))


def run_state(folder: Path, jobs: Mapping[str, str] | None) -> RunState:
    """The state of the run in `folder`; `jobs` are Slurm's, id to state such as `PENDING`, None if
    it does not answer.
    """
    path = folder / "status.json"
    try:
        status, age = read_status(folder), time.time() - path.lstat().st_mtime
    except SkipbenchError as error:
        return RunState("failed", str(error))
    except OSError:  # there is none, or no longer
        return RunState("missing")
    match status.state:
        case "done" | "missing":
            return RunState(status.state)
        case "failed" | "interrupted":
            return RunState(status.state, printable(str(status.error)))
        case state if state != "running":
            return RunState("failed", f"{path} names no state")
    pid, host, job = status.pid, status.host, status.slurm
    here = pid if host == socket.gethostname() else None
    if job and jobs and jobs.get(job) == "PENDING":
        return RunState("queued", printable(f"Slurm job {job} was requeued"))
    if here is not None and not is_alive(here):
        why = f"process {pid} is gone: it was killed, perhaps for memory"
    elif jobs is not None and job is not None and job not in jobs:
        why = f"Slurm job {job} on {host} is gone: it was killed, or its node was lost"
    elif age > STALE_S:
        why = f"pid {pid} on {host} gave no sign of life for {age / 60:.0f} minutes"
    else:
        return RunState("running", printable(f"pid {pid} on {host}"))
    return RunState("stale", printable(why))


def is_alive(pid: int) -> bool:
    with contextlib.suppress(PermissionError, OverflowError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    with contextlib.suppress(OSError):  # on Linux; a zombie still has its number
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


SIGNALS = (signal.SIGTERM, signal.SIGUSR2)  # of preemption, `scancel`, `kill`, Slurm's time limit


class Interrupted(BaseException):
    """A signal has asked for the end; no Exception, so that nothing handles it as a failure."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"interrupted by {self.signal.name}; the same command goes on")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises `Interrupted`, and ignores all signals that follow, to finish writing."""
    for known in SIGNALS:
        if signal.getsignal(known) == _interrupt:
            signal.signal(known, signal.SIG_IGN)
    raise Interrupted(number)


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Within it the signals raise `Interrupted`, unless another, as submitit, listens already."""
    main = threading.current_thread() is threading.main_thread()  # others cannot set handlers
    ours = [n for n in SIGNALS if main and signal.getsignal(n) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def defer_signals() -> Iterator[list[int]]:
    """A signal within it, which it yields, is raised as `Interrupted` at its end.

    The handler waits, the signal is not blocked: a mask is of one thread, and the kernel gives the
    signal to another.
    """
    asked: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    ours = [n for n in SIGNALS if main and signal.getsignal(n) == _interrupt]
    for number in ours:
        signal.signal(number, lambda number, _: asked.append(number))
    try:
        yield asked
    finally:
        for number in ours:
            signal.signal(number, _interrupt)
        if asked:
            signal.raise_signal(asked[0])
