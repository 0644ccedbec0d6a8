"""Files of results: replaced as a whole, or appended to by line."""

import contextlib
import json
import os
import secrets
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import is_json, read_bytes

STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


@contextlib.contextmanager
def unbroken(signals: Iterable[int] = STOPS) -> Iterator[list[int]]:
    """Signals that ask for the end, which it yields, wait for the block's: nothing half made is
    left behind.

    Its handler is put off, not the signal blocked: a mask is of one thread, and the kernel gives
    the signal to another. Outside the main thread no handler runs, and nothing is to be done.
    """
    asked: list[int] = []
    before: dict[int, Any] = {}
    waits = True

    def put_off(number: int, _: FrameType | None) -> None:
        if waits:
            asked.append(number)
        else:  # its own handler's turn, also where another signal broke off the loop below
            signal.signal(number, before[number])
            signal.raise_signal(number)

    try:
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.getsignal(number)
                    signal.signal(number, put_off)
        yield asked
    finally:
        waits = False
        for one, handler in before.items():
            signal.signal(one, handler)
        for one in asked:
            signal.raise_signal(one)


@contextlib.contextmanager
def writing(path: Path, waits: bool = False) -> Iterator[None]:
    """Raises an OSError of writing `path` as a SkipbenchError, and is `unbroken` unless it `waits`
    for another process.
    """
    try:
        with contextlib.nullcontext() if waits else unbroken():
            yield
    except OSError as error:
        raise SkipbenchError(
            f"{path} is not writable ({error}); free some space, or choose another folder with "
            "results=FOLDER, and run the same command again"
        ) from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole, and makes its folder. Raises SkipbenchError if it cannot."""
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)  # less the umask
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of indented JSON; raises ValueError for a number that is not finite."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def append_line(path: Path, line: str) -> None:
    """Appends a line durably, or leaves the file as it was. Raises SkipbenchError if it cannot."""
    data = line.encode() + b"\n"
    with writing(path), contextlib.ExitStack() as stack:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        stack.callback(os.close, handle)
        before = os.fstat(handle).st_size
        try:
            if os.write(handle, data) != len(data):
                raise OSError("short write")
            os.fsync(handle)
        except OSError:  # readers cut off a torn last line, too
            with contextlib.suppress(OSError):
                os.ftruncate(handle, before)
            raise


def read_lines(path: Path, repair: bool = False, torn: bool = False) -> list[tuple[int, bytes]]:
    """Numbered lines of an append-only file; a last one without a line break is left out: it was
    being written when its process died.

    Args:
        repair: cuts off the file what is left out.
        torn: also leaves out a last line that is no JSON.
    """
    data = read_bytes(path) or b""
    # bytes.splitlines would also break a damaged line at a carriage return
    lines = data.split(b"\n")[:-1]
    if torn and lines and not is_json(lines[-1]):
        lines.pop()
    end = sum(len(line) + 1 for line in lines)
    if repair and end < len(data):
        os.truncate(path, end)
    return list(enumerate(lines, 1))


def overwrite(path: Path, text: str) -> bool:
    """Writes over a small file, whose block is there on a full disk too; whether that went well."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            data = text.encode().ljust(os.fstat(handle).st_size)  # at once: no reader sees two
            return os.pwrite(handle, data, 0) == len(data)
        finally:
            os.close(handle)
    except OSError:
        return False
