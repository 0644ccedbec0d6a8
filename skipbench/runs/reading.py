"""Files of results as plain data, and errors that name them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from skipbench.errors import SkipbenchError

MALFORMED = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    RecursionError,
)  # raised by values of another form; msgspec's errors are ValueErrors
T = TypeVar("T")


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
        text = " ".join(str(error).split())
        raise SkipbenchError(f"{path} cannot be read:{what} {text}; {remedy}") from error


def read_bytes(path: Path) -> bytes | None:
    """The contents of a file; None if there is none. Raises SkipbenchError if it cannot be read."""
    with readable(path):
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


def run_folders(results: Path) -> list[Path]:
    """The folders of arms under `results/runs`, in those of their rows, by name."""
    arms = [arm for row in _folders(results / "runs") for arm in _folders(row)]
    return [a for a in arms if (a / "config.yaml").exists() or (a / "status.json").exists()]


def _folders(place: Path) -> list[Path]:
    found = sorted(place.iterdir()) if place.is_dir() else []
    return [path for path in found if path.is_dir() and not path.name.startswith(".")]


def read_json(path: Path, kind: type[T]) -> T | None:
    """The value in a JSON file, if it fits the type `kind`; None if there is no file. Raises
    SkipbenchError, with the file, if it does not fit or cannot be read.
    """
    if (data := read_bytes(path)) is None:
        return None
    with readable(path):
        return msgspec.json.decode(data, type=kind)


def read_yaml(path: Path) -> dict[str, Any] | None:
    """The mapping of plain values in a YAML file; None if there is no file. Raises SkipbenchError,
    with the file, if it holds something else or cannot be read.
    """
    if (data := read_bytes(path)) is None:
        return None
    with readable(path):
        # by Python's own loader: libyaml ends the process on a file that nests deeply
        return msgspec.convert(yaml.safe_load(data), dict[str, Any])
