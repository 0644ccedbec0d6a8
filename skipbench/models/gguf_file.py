"""The header of a GGUF file and the bytes of its tensors (version 2 and 3, little-endian), as
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md defines them.
"""

import math
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from skipbench.errors import SkipbenchError

SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""Types of metadata, and how `struct` reads them."""
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 16  # pairs of metadata, tensors
MAX_ITEMS = 1 << 21  # bytes of a text, items of a list: Llama 3 has 280,147 merges
MAX_DIMENSIONS = 4  # llama.cpp's own limit


@dataclass(frozen=True)
class Entry:
    """One tensor: its shape with the rows first, and the place of its bytes."""

    shape: tuple[int, ...]
    kind: Any
    """A `gguf.GGMLQuantizationType`."""
    start: int
    size: int


@dataclass(frozen=True)
class Header:
    """Metadata of a file, and its tensors by name."""

    path: Path
    fields: Mapping[str, Any]
    entries: dict[str, Entry]

    def dequantized(self, name: str) -> Any:
        """A tensor as a float32 array of its shape.

        Raises:
            SkipbenchError: a type that cannot be read.
        """
        from gguf import quants

        entry = self.entries[name]
        raw = np.fromfile(self.path, dtype=np.uint8, count=entry.size, offset=entry.start)
        rows = raw.reshape(*entry.shape[:-1], -1)
        try:
            return quants.dequantize(rows, entry.kind).reshape(entry.shape)
        except NotImplementedError as error:  # what the library raises for a type it lacks
            raise SkipbenchError(
                f"model.path={self.path}: tensor {name!r} is of type {entry.kind.name}, which "
                "cannot be read; wanted F32, F16, BF16 or one of llama.cpp's Q and IQ types"
            ) from error


def read_header(path: Path) -> Header:
    """Reads all but the weights.

    Raises:
        SkipbenchError: no GGUF file, another version, a type of weights that is not known, or a
            file that ends too early.
    """
    with _explained(path), path.open("rb") as file:
        magic, version, tensors, pairs = struct.unpack("<4sIQQ", _read(file, 24))
        if magic != b"GGUF" or version not in VERSIONS:
            raise SkipbenchError(
                f"model.path={path} is no GGUF file of version {' or '.join(map(str, VERSIONS))}"
            )
        for count in (pairs, tensors):
            _check_count(file, count, MAX_ENTRIES)
        fields = {_text(file): _value(file, _int(file)) for _ in range(pairs)}
        found = [_tensor(file, path) for _ in range(tensors)]
        step = fields.get("general.alignment", 32)
        if not isinstance(step, int) or step < 1:
            raise EOFError(f"general.alignment is {step!r}")
        begin = -(-file.tell() // step) * step
        length = os.fstat(file.fileno()).st_size
    entries = {name: replace(entry, start=begin + entry.start) for name, entry in found}
    end = max((entry.start + entry.size for entry in entries.values()), default=0)
    if end > length:
        raise SkipbenchError(f"model.path={path} is cut: {length} bytes of {end}; fetch it again")
    return Header(path, fields, entries)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, UnicodeDecodeError, OverflowError) as error:
        raise SkipbenchError(
            f"model.path={path} is cut or damaged: its header cannot be read ({error}); fetch it "
            "again"
        ) from error
    except OSError as error:
        raise SkipbenchError(f"model.path={path} cannot be read ({error})") from error


def _check_count(file: BinaryIO, count: int, largest: int) -> None:
    if count > largest:
        raise EOFError(f"a count of {count} at {file.tell()}, wanted at most {largest}")


def _read(file: BinaryIO, count: int) -> bytes:
    found = file.read(count)
    if len(found) < count:
        raise EOFError(f"{len(found)} of {count} bytes at {file.tell() - len(found)}")
    return found


def _text(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", _read(file, 8))
    _check_count(file, length, MAX_ITEMS)
    return _read(file, length).decode("utf-8")


def _int(file: BinaryIO) -> int:
    (number,) = struct.unpack("<I", _read(file, 4))
    return int(number)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _text(file)
    if kind == ARRAY:
        inner, count = struct.unpack("<IQ", _read(file, 12))
        _check_count(file, count, MAX_ITEMS)
        if inner in SCALARS:
            size = struct.calcsize(SCALARS[inner])
            return list(struct.unpack(f"<{count}{SCALARS[inner]}", _read(file, count * size)))
        if inner == STRING:
            return [_text(file) for _ in range(count)]
        raise EOFError(f"a list of type {inner} at {file.tell()}, wanted numbers or texts")
    if kind not in SCALARS:
        raise EOFError(f"metadata of type {kind} at {file.tell()}")
    return struct.unpack(f"<{SCALARS[kind]}", _read(file, struct.calcsize(SCALARS[kind])))[0]


def _tensor(file: BinaryIO, path: Path) -> tuple[str, Entry]:
    """Name and entry of the next tensor of the table; its start counts from the first weight."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name = _text(file)
    dimensions = _int(file)
    _check_count(file, dimensions, MAX_DIMENSIONS)
    shape = struct.unpack(f"<{dimensions}Q", _read(file, 8 * dimensions))[::-1]
    number, offset = struct.unpack("<IQ", _read(file, 12))
    if number not in {kind.value for kind in GGMLQuantizationType}:
        raise SkipbenchError(
            f"model.path={path}: tensor {name!r} is of type {number}, which gguf does not know; "
            "`pip install -U gguf`, or quantise the model to a common type, such as Q8_0"
        )
    kind = GGMLQuantizationType(number)
    block, size = GGML_QUANT_SIZES[kind]
    if not shape or 0 in shape or shape[-1] % block:
        raise EOFError(f"tensor {name!r} of shape {shape}, wanted rows of whole blocks of {block}")
    return name, Entry(shape, kind, offset, math.prod(shape) // block * size)
