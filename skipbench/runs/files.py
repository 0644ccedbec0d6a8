"""Files of a results folder: replaced as a whole, appended to line by line, and a folder held by
one process at a time.
"""

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import MOST_SAMPLES, check_name, printable, read_bytes


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole: a reader sees the old content or the new one."""
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def append_line(path: Path, line: str) -> None:
    """Appends one line durably, or leaves the file as it was.

    Raises:
        SkipbenchError: the file cannot be opened, or the line not be written in full, for instance
            on a full disk.
    """
    data = line.encode() + b"\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise not_writable(path.parent, error) from error
    before = os.fstat(handle).st_size
    try:
        if os.write(handle, data) != len(data):
            raise OSError("short write")
        os.fsync(handle)
    except OSError as error:
        # what stays behind is a torn last line, which readers cut off
        with contextlib.suppress(OSError):
            os.ftruncate(handle, before)
        raise SkipbenchError(
            f"cannot append to {path}: {error}; free some space and run the same command again"
        ) from error
    finally:
        os.close(handle)


def read_lines(path: Path, repair: bool) -> Iterator[tuple[int, str]]:
    """Numbered lines of an append-only file, without a torn last one; `repair` also cuts that off
    the file.
    """
    return (
        (number, line.decode(errors="surrogateescape")) for number, line in lines_of(path, repair)
    )


def lines_of(path: Path, repair: bool) -> list[tuple[int, bytes]]:
    data = read_bytes(path, MOST_SAMPLES) or b""
    end = data.rfind(b"\n") + 1
    if repair and end < len(data):
        os.truncate(path, end)
    # bytes.splitlines would also break a damaged line at a carriage return, and number the rest
    # wrongly
    return list(enumerate(data[:end].split(b"\n")[:-1], 1))


def not_writable(folder: Path, error: OSError) -> SkipbenchError:
    return SkipbenchError(
        f"results folder {folder} is not writable ({error}); choose another with results=FOLDER"
    )


def overwrite(path: Path, text: str) -> bool:
    """Writes over a small file where a full disk has no room for a new one: its block is there.

    Returns whether that went well.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        data = text.encode().ljust(os.fstat(handle).st_size)  # at once: no reader sees two texts
        return os.pwrite(handle, data, 0) == len(data)
    except OSError:
        return False
    finally:
        os.close(handle)


def acquire(folder: Path) -> int:
    """Makes the folder and takes its lock; returns the open lock, which closing gives back.

    Raises:
        SkipbenchError: not writable, a symbolic link, without locks, or held by another process.
    """
    check_name(folder)
    if folder.is_symlink():
        raise SkipbenchError(
            f"{folder} is a symbolic link; remove it, or link the whole results folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise not_writable(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(lock, 200).decode(errors="replace")
        os.close(lock)
        raise SkipbenchError(
            f"{folder} is being written by another process ({printable(holder)}); wait for "
            "it, or stop it"
        ) from error
    except OSError as error:
        os.close(lock)
        raise SkipbenchError(
            f"{folder} cannot be locked ({error}); choose a file system with locks with "
            "results=FOLDER"
        ) from error
    return lock


def sign(lock: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)


def set_aside(folder: Path) -> None:
    """Moves a run or a search, if it is there, to `replaced/` in its results folder.

    Raises:
        SkipbenchError: another process writes it, or it cannot be moved.
    """
    if not folder.exists():
        return
    lock = acquire(folder)
    try:
        target = folder.parent.parent / "replaced" / folder.name
        target.parent.mkdir(exist_ok=True)
        number = 1
        while target.exists():
            target = target.with_name(f"{folder.name}.{number}")
            number += 1
        os.rename(folder, target)
    except OSError as error:
        raise not_writable(folder, error) from error
    finally:
        os.close(lock)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder for this process alone; raises what `acquire` raises."""
    lock = acquire(folder)
    try:
        with contextlib.suppress(OSError):  # a full disk has no room for a name
            sign(lock)
        yield
    finally:
        os.close(lock)
