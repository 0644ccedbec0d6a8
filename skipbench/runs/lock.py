"""One process at a time on a folder or a file: `flock`, and where the file system has none, a file
of each process, whose time the others watch.

Own code, as no library keeps this: flufl.lock breaks a living holder's lock where clocks differ by
its lifetime, and a lease of filelock is never taken from a dead holder of another machine where
names cannot be exchanged, which is so on NFS.
"""

import contextlib
import fcntl
import itertools
import os
import random
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from skipbench.errors import SkipbenchError, printable
from skipbench.runs.files import writing
from skipbench.runs.reading import check_name, refuse_link
from skipbench.runs.state import is_alive, started

BEAT_S = 5.0  # between two signs of life of a process that holds a claim
DEAD_S = 60.0
"""A claim of another machine whose time does not change for so long is a dead process's."""
CLAIM = re.compile(r"(asks|holds) (\S+) (\d{1,9}) (\S+) (\S+)")
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
        holder, claim = "", None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = "it has the lock"
            with contextlib.suppress(OSError):  # a file that is open for writing alone
                holder = os.read(handle, 200).decode(errors="replace") or holder
        except OSError:  # of a file system without locks
            claim = Claim(file)
            stack.callback(claim.release)
            with writing(what, waits=True):
                holder = claim.take(wait)
        if holder:
            raise SkipbenchError(
                f"{what} is being written by another process ({printable(holder)}); wait for it, "
                "or stop it"
            )
        yield claim.check if claim else lambda: None


class Claim:
    """A file of this process alone, such as `.lock.9f3a01c7`, beside those of others.

    Who has made its file, and then finds no other living one, holds the lock: of two, the later one
    finds the earlier one's file. Who finds one takes its own away, and tries again. A process of
    this machine lives or does not; of one elsewhere the time of its file tells, which it sets every
    `BEAT_S`. Only changes count, by this machine's monotonic clock: clocks may jump.
    """

    def __init__(self, file: Path) -> None:
        name = f".{file.name.lstrip('.')}."
        self._path = file.with_name(name + secrets.token_hex(4))
        self._named = re.compile(re.escape(name) + "[0-9a-f]{8}")
        self._end = threading.Event()
        self._seen = dict[Path, tuple[int, float, bool]]()

    def take(self, wait: bool) -> str:
        """Name of the process that holds the lock, unless it shall `wait`; empty once it is this
        one. Raises OSError.
        """
        while True:
            self._write("asks", os.O_CREAT)
            if not (living := self._living()):
                with contextlib.suppress(FileNotFoundError):  # it stood still here for `DEAD_S`
                    self._write("holds")
                    threading.Thread(target=self._beat, daemon=True).start()
                    return ""
            self._path.unlink(missing_ok=True)
            if not wait and (holders := [name for name, holds in living if holds]):
                return holders[0]
            time.sleep(random.uniform(0.05, 0.2))

    def check(self) -> None:
        """Sets the file's time. Raises SkipbenchError where another process took the file away."""
        try:
            os.utime(self._path)
        except FileNotFoundError as error:
            raise SkipbenchError(
                f"{self._path.parent} was taken over by another process, as this one gave no sign "
                f"of life for {DEAD_S:.0f} s; run the same command again"
            ) from error

    def release(self) -> None:
        self._end.set()
        with contextlib.suppress(OSError):  # of a disk that is gone
            self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            with contextlib.suppress(OSError):  # who writes next will tell
                os.utime(self._path)

    def _write(self, state: str, flags: int = 0) -> None:
        words = state, _place(), os.getpid(), started(os.getpid()), socket.gethostname()
        handle = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | flags, 0o644)
        try:
            os.pwrite(handle, " ".join(map(str, words)).ljust(200).encode(), 0)
        finally:
            os.close(handle)

    def _living(self) -> list[tuple[str, bool]]:
        """Other processes, and whether each surely holds the lock; removes dead ones' files."""
        living = []
        for name in filter(self._named.fullmatch, os.listdir(self._path.parent)):
            if (path := self._path.with_name(name)) == self._path:
                continue
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                continue
            with os.fdopen(handle, "rb") as file:  # opened anew: a file server tells its time
                text = file.read(400).decode(errors="replace")
                changed = os.fstat(handle).st_mtime_ns
            known, now = CLAIM.match(text), time.monotonic()
            state, place, pid, start, host = known.groups() if known else ("asks", "", "0", "", "?")
            before, since, beats = self._seen.get(path, (changed, now, False))
            if changed != before:
                since, beats = now, True
            self._seen[path] = changed, since, beats
            lives, here = now - since < DEAD_S, place == _place()
            if here and (state == "holds" or lives):
                lives = is_alive(int(pid)) and str(started(int(pid))) == start
            if lives:
                living.append((f"pid {pid} on {host}", state == "holds" and (here or beats)))
            else:
                path.unlink(missing_ok=True)
        return living


def _place() -> str:
    """What tells this machine, and its container, from others, whatever their names."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


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
