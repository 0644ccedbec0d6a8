"""The header of a GGUF file and the bytes of its tensors (version 2 and 3, little-endian), as
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md defines them.
"""

import importlib.util
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from skipbench.errors import SkipbenchError

SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""Types of metadata, and how `struct` reads them."""
STRING, ARRAY = 8, 9
MAX_ENTRIES = 1 << 16  # pairs of metadata, tensors
MAX_ITEMS = 1 << 21  # bytes of a text, items of a list: Llama 3 has 280,147 merges
MAX_DIMENSIONS = 4  # llama.cpp's own limit
MAX_BYTES = 32 << 20  # of the metadata: Gemma's 262,144 tokens have 6 MB


class Entry(NamedTuple):
    """One tensor: its shape with the rows first, and the place of its bytes."""

    shape: tuple[int, ...]
    kind: Any  # A `gguf.GGMLQuantizationType`
    start: int
    size: int


class Header(NamedTuple):
    """Metadata of a file, and its tensors by name."""

    path: Path
    fields: Mapping[str, Any]
    entries: dict[str, Entry]

    def dequantized(self, name: str) -> Any:
        """A tensor as a float32 array of its shape. Raises SkipbenchError for a type that cannot be
        read.
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
    """Reads all but the weights. Raises SkipbenchError for no GGUF file, another version, a type
    of weights that is not known, a file that ends too early, and where `gguf` is not installed.
    """
    if importlib.util.find_spec("gguf") is None:
        raise SkipbenchError(f"model.path={path} needs gguf: pip install 'skipbench[gguf]'")
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError("no regular file")
        with path.open("rb") as file:
            magic, version, tensors, pairs = _unpack(file, "4sIQQ")
            if magic != b"GGUF" or version not in (2, 3):
                raise SkipbenchError(f"model.path={path} is no GGUF file of version 2 or 3")
            _check_count(file, max(pairs, tensors), MAX_ENTRIES)
            fields = {_text(file): _value(file, *_unpack(file, "I")) for _ in range(pairs)}
            found = [_tensor(file, path) for _ in range(tensors)]
            step = fields.get("general.alignment", 32)
            if not isinstance(step, int) or step < 1:
                raise EOFError(f"general.alignment is {step!r}")
            begin = -(-file.tell() // step) * step
            length = os.fstat(file.fileno()).st_size
    except (EOFError, UnicodeDecodeError, OverflowError) as error:
        raise SkipbenchError(
            f"model.path={path} is cut or damaged: its header cannot be read ({error}); fetch it "
            "again"
        ) from error
    except OSError as error:
        raise SkipbenchError(f"model.path={path} cannot be read ({error})") from error
    entries = {name: entry._replace(start=begin + entry.start) for name, entry in found}
    end = max((entry.start + entry.size for entry in entries.values()), default=0)
    if end > length:
        raise SkipbenchError(f"model.path={path} is cut: {length} bytes of {end}; fetch it again")
    return Header(path, fields, entries)


def _check_count(file: BinaryIO, count: int, largest: int) -> None:
    if file.tell() > MAX_BYTES:
        raise EOFError(f"metadata of more than {MAX_BYTES} bytes")
    if count > largest:
        raise EOFError(f"a count of {count} at {file.tell()}, wanted at most {largest}")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    count = struct.calcsize(f"<{form}")
    data = file.read(count)
    if len(data) < count:
        raise EOFError(f"{len(data)} of {count} bytes at {file.tell() - len(data)}")
    return struct.unpack(f"<{form}", data)


def _text(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    _check_count(file, length, MAX_ITEMS)
    return str(_unpack(file, f"{length}s")[0], "utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _text(file)
    if kind == ARRAY:
        inner, count = _unpack(file, "IQ")
        _check_count(file, count, MAX_ITEMS)
        if inner in SCALARS:
            return list(_unpack(file, f"{count}{SCALARS[inner]}"))
        if inner == STRING:
            return [_text(file) for _ in range(count)]
        raise EOFError(f"a list of type {inner} at {file.tell()}, wanted numbers or texts")
    if kind not in SCALARS:
        raise EOFError(f"metadata of type {kind} at {file.tell()}")
    return _unpack(file, SCALARS[kind])[0]


def _tensor(file: BinaryIO, path: Path) -> tuple[str, Entry]:
    """Name and entry of the next tensor of the table; its start counts from the first weight."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name, (dimensions,) = _text(file), _unpack(file, "I")
    _check_count(file, dimensions, MAX_DIMENSIONS)
    shape = _unpack(file, f"{dimensions}Q")[::-1]
    number, offset = _unpack(file, "IQ")
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
