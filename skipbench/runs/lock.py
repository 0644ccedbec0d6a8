"""One process at a time on a folder or a file: `flock`, and where the file system has none, a file
whose time its holder sets and others watch.
"""

import contextlib
import fcntl
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from skipbench.errors import SkipbenchError
from skipbench.runs.files import writing
from skipbench.runs.reading import check_name, printable, refuse_link
from skipbench.runs.state import is_alive

DEAD_S = 60.0
"""A lease whose time does not change for so long is a dead process's."""
Check = Callable[[], None]
"""Raises SkipbenchError where another process has taken the lock over meanwhile."""


@contextlib.contextmanager
def held(folder: Path, wait: bool = False) -> Iterator[Check]:
    """Makes the folder, and holds its lock.

    Args:
        wait: for another process to release the lock, which is an error otherwise.

    Raises:
        SkipbenchError: not writable, a symbolic link, or held by another process.
    """
    check_name(folder)
    refuse_link(folder)
    file = folder / ".lock"
    with contextlib.ExitStack() as stack:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            stack.callback(os.close, handle)
        check = stack.enter_context(alone(handle, file, folder, wait))
        with contextlib.suppress(OSError):  # a full disk has no room for a name
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield check


@contextlib.contextmanager
def alone(handle: int, file: Path, what: Path, wait: bool = False) -> Iterator[Check]:
    """Locks an open file. Raises SkipbenchError where another process holds it, which says so of
    `what`, unless it shall `wait`.
    """
    with contextlib.ExitStack() as stack:
        holder, lease = "", None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = "it has the lock"
            with contextlib.suppress(OSError):  # a file that is open for writing alone
                holder = os.read(handle, 200).decode(errors="replace") or holder
        except OSError:  # of a file system without locks
            lease = Lease(file)
            stack.callback(lease.release)
            with writing(what):
                holder = lease.take(wait)
        if holder:
            raise SkipbenchError(
                f"{what} is being written by another process ({printable(holder)}); wait for it, "
                "or stop it"
            )
        yield lease.check if lease else lambda: None


class Lease:
    """A file such as `.lock.lease`, by `filelock`: its holder sets its time every `DEAD_S / 12`,
    others watch for changes by their own monotonic clocks, as clocks may jump. A dead process of
    this machine holds nothing, one elsewhere nothing after `DEAD_S`.
    """

    def __init__(self, file: Path) -> None:
        from filelock import SoftFileLease  # the one of a GPU machine may be older

        self._path = file.with_name(f"{file.name}.lease")
        times = {"lease_duration": DEAD_S, "heartbeat_interval": DEAD_S / 12}
        self._lease = SoftFileLease(self._path, **times, thread_local=False)

    def take(self, wait: bool) -> str:
        """Name of the process that holds the lock, unless it shall `wait`; empty once it is this
        one. Raises OSError.
        """
        from filelock import Timeout

        end, seen = time.monotonic() + 1.2 * DEAD_S, set[int]()
        while True:
            with contextlib.suppress(Timeout):
                self._lease.acquire(blocking=wait, poll_interval=0.1)
                return ""
            with contextlib.suppress(FileNotFoundError):
                seen.add(self._path.stat().st_mtime_ns)
            if owner := self._lease.owner:
                here = owner.hostname.partition("?")[0] == socket.gethostname()
                if len(seen) > 1 or (here and is_alive(owner.pid)):
                    return f"pid {owner.pid} on {owner.hostname}"
            if (
                time.monotonic() > end
            ):  # of a later version, or of a process that could write nothing
                return f"see {self._path}, and remove it where none runs"
            time.sleep(0.1)

    def check(self) -> None:
        """Raises SkipbenchError where another process took the file away."""
        owner = self._lease.owner
        if owner.token != self._lease.token if owner else not self._path.exists():
            raise SkipbenchError(
                f"{self._path.parent} was taken over by another process, as this one gave no sign "
                f"of life for {DEAD_S:.0f} s; run the same command again"
            )

    def release(self) -> None:
        with contextlib.suppress(OSError):  # of a disk that is gone
            self._lease.release(force=True)


def set_aside(folder: Path) -> None:
    """Moves a run or a search to `replaced/`. Raises SkipbenchError if it is held, or cannot be."""
    if not folder.exists():
        return
    with held(folder), writing(folder):
        target = folder.parent.parent / "replaced" / folder.name
        target.parent.mkdir(exist_ok=True)
        for number in itertools.count(1):
            if not target.exists():
                break
            target = target.with_name(f"{folder.name}.{number}")
        os.rename(folder, target)
