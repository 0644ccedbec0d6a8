"""Files that anybody may have written, as plain data: nothing runs, and no link is followed."""

import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml

from skipbench.errors import SkipbenchError

Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*$")]
"""Without control characters: it is printed."""
DEEPEST = 50  # levels of YAML; libyaml's recursion ends the process without an exception
LARGEST = 2**63
MOST_YAML = 256 << 10  # bytes; libyaml takes a second for so many
MOST_RECORD = 16 << 20  # of a JSON file of a run or a search, which has kilobytes
MOST_BYTES = 64 << 20  # of a file without samples
MOST_SAMPLES = 1 << 30  # of a file with a line per sample; 1000 long samples have some 100 MiB
MALFORMED = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    RecursionError,
)  # raised by values of another form; msgspec's errors are ValueErrors
T = TypeVar("T")
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where there is one


def check_name(path: Path) -> None:
    """Raises SkipbenchError for a name with control characters or with bytes that are no text."""
    if not path.name.isprintable():
        raise SkipbenchError(
            f"{path}: its name has characters that no run is named with; rename it"
        )


def refuse_link(path: Path) -> None:
    """Raises SkipbenchError for a symbolic link: nothing is read or written through one."""
    if path.is_symlink():
        raise SkipbenchError(
            f"{path} is a symbolic link; copy what it points to in its place, or link the whole "
            "results folder"
        )


@contextmanager
def readable(path: Path, remedy: str = "move it away") -> Iterator[None]:
    """Raises what a file of another form causes as a SkipbenchError with its name and `remedy`."""
    try:
        yield
    except SkipbenchError as error:
        if path.name in str(error):
            raise
        raise SkipbenchError(f"{path}: {error}") from error
    except (*MALFORMED, yaml.YAMLError) as error:
        what = f" {type(error).__name__}" if isinstance(error, LookupError | AttributeError) else ""
        raise SkipbenchError(f"{path} cannot be read:{what} {error}; {remedy}") from error


def read_bytes(path: Path, most: int = MOST_SAMPLES) -> bytes | None:
    """The contents of a regular file; None if there is none. Raises SkipbenchError where the file
    or its folder is a symbolic link, it is no regular file, has more than `most` bytes, or cannot
    be read.
    """
    for part in (path.parent, path):
        check_name(part)
    refuse_link(path.parent)
    try:  # without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        refuse_link(path)
        raise SkipbenchError(f"{path} cannot be read: {error.strerror}") from error
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise SkipbenchError(f"{path} is no regular file; move it away")
        if info.st_size > most:
            raise SkipbenchError(f"{path} has more than {most} bytes; move it away")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(info.st_size)  # a read allocates what it asks for
    finally:
        os.close(handle)


def run_folders(results: Path) -> list[Path]:
    """The folders under `results/runs`, by name; what reads them refuses links and odd names.
    Raises SkipbenchError where `runs` is a symbolic link; `results` itself may be one.
    """
    refuse_link(runs := results / "runs")
    folders = sorted(runs.iterdir()) if runs.is_dir() else []
    return [path for path in folders if path.is_dir() and not path.name.startswith(".")]


def read_json(path: Path, kind: type[T]) -> T | None:
    """The value in a JSON file, if it fits the type `kind`; None if there is no file. Raises
    SkipbenchError, with the file, for what `read_bytes` and `strict_json` refuse.
    """
    value: T | None = _read(path, kind, strict_json)
    return value


def read_yaml(path: Path, kind: type[Any] = dict[str, Any]) -> Any:
    """The mapping in a YAML file of plain values, if it fits the type `kind`; None if there is no
    file. Raises SkipbenchError where it is something else, holds a tag that would make an object,
    an alias, or nests too deeply.
    """
    return _read(path, kind, _safe_yaml)


def _read(path: Path, kind: type[Any], load: Callable[[bytes], Any]) -> Any:
    if (data := read_bytes(path, MOST_YAML if load is _safe_yaml else MOST_RECORD)) is None:
        return None
    with readable(path):
        typed = msgspec.convert(value := load(data), kind, str_keys=True)
    return typed if isinstance(typed, msgspec.Struct) else value


def strict_json(data: bytes | str) -> Any:
    """JSON without NaN, repeated names and huge numbers. Raises ValueError or RecursionError."""
    msgspec.json.decode(data)  # refuses NaN, what is out of range, and half of a surrogate pair
    return json.loads(data, object_pairs_hook=_once, parse_int=_integer)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(name for name, _ in pairs) - Counter(value.keys())
        raise ValueError(f"{sorted(twice)} occur twice")
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or not -LARGEST <= int(text) < LARGEST:
        raise ValueError(f"a number of {len(text)} digits is out of range")
    return int(text)


def is_json(line: bytes) -> bool:
    """True if a line was written to its end; it may still be no record."""
    try:
        json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return False
    except (ValueError, RecursionError):  # a number too long, or nested too deeply
        pass
    return True


def _safe_yaml(data: bytes) -> Any:
    depth = 0
    for event in yaml.parse(data, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent):  # a few of them multiply to any size
            raise ValueError(f"alias {event.anchor!r}; no run writes one")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} levels deep")
    value = yaml.load(data, Loader=LOADER)  # one of the two safe loaders
    json.dumps(value, ensure_ascii=False, default=str).encode()  # refuses half of a surrogate pair
    return value
