"""One process at a time on a folder or a file, by `flock`."""

import contextlib
import errno
import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from skipbench.errors import SkipbenchError, printable
from skipbench.runs.files import writing

NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def held(folder: Path, wait: bool = False) -> Iterator[None]:
    """Makes the folder, and holds its lock, a file `.lock` with the name of this process. Raises
    SkipbenchError where it is not writable, on a file system without `flock`, or, unless it is to
    `wait`, held by another process.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    file = folder / ".lock"
    with alone(file, folder, wait):
        with contextlib.suppress(OSError):  # a full disk has no room for a name
            file.write_text(f"pid {os.getpid()} on {socket.gethostname()}")
        yield


@contextlib.contextmanager
def alone(file: Path, what: Path, wait: bool = False) -> Iterator[None]:
    """Makes the file, and holds its lock; errors, otherwise those of `held`, name `what`."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(file, timeout=-1 if wait else 0, fallback_to_soft=False))
        except Timeout as error:
            holder = _holder(file) if file != what else ""
            raise SkipbenchError(
                f"{what} is being written by another process ({holder or 'it has the lock'}); "
                "wait for it, or stop it"
            ) from error
        except OSError as error:
            if error.errno in NO_FLOCK:
                advice = "mount it with -o flock, or choose another folder with results=FOLDER"
                raise SkipbenchError(
                    f"{what} is on a file system without flock; {advice}"
                ) from error
            with writing(what):
                raise
        yield


def _holder(file: Path) -> str:
    with contextlib.suppress(OSError):
        return printable(file.read_bytes()[:200].decode(errors="replace"))
    return ""


def move_aside(folder: Path) -> None:
    """Moves a search to `replaced/`. Raises SkipbenchError if it is held, or cannot be."""
    if not folder.exists():
        return
    with held(folder), writing(folder):
        (replaced := folder.parent.parent / "replaced").mkdir(exist_ok=True)
        places = (replaced / f"{folder.name}.{n}" for n in itertools.count(1))
        os.rename(folder, next(place for place in places if not place.exists()))
