"""Files of results: replaced as a whole, or appended to by line."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import read_bytes


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises an OSError of writing `path` as a SkipbenchError."""
    try:
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
    """Appends a line durably, or leaves the file as it was, in place of what another process left
    that died within a line. Raises SkipbenchError if it cannot.
    """
    data = line.encode() + b"\n"
    with writing(path), contextlib.ExitStack() as stack:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        stack.callback(os.close, handle)
        before = os.fstat(handle).st_size
        if before and os.pread(handle, 1, before - 1) != b"\n":
            read_lines(path, repair=True)
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
    """Numbered lines of an append-only file, without a last one that has no line break, which was
    being written when its process died, or (`torn`) that is no JSON; `repair` cuts it off the file.
    """
    data = read_bytes(path) or b""
    # bytes.splitlines would also break a damaged line at a carriage return
    lines = data.split(b"\n")[:-1]
    if torn and lines:
        try:
            msgspec.json.decode(lines[-1])
        except (ValueError, RecursionError):
            lines.pop()
    end = sum(len(line) + 1 for line in lines)
    if repair and end < len(data):
        os.truncate(path, end)
    return list(enumerate(lines, 1))
