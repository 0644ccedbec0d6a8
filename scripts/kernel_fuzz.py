"""The C kernels under odd shapes and values:
`python scripts/kernel_fuzz.py LIBRARY KERNELS SECONDS SEED LAST`.

Every buffer ends at, or begins behind, a page that may not be touched. A row must have the bits
that it has alone, whatever the values (NaN and infinities among them), and ordinary values give
what float64 gives. The number of the case at hand stands in the file LAST: a fault ends the
process. Ctypes and numpy alone, so that LIBRARY may be built with sanitizers; the structures are
those of the C files.
"""

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LONG, POINTER = ctypes.c_long, ctypes.c_void_p
PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None)
LIBC.mmap.restype, LIBC.mmap.argtypes = POINTER, [POINTER, LONG, *[ctypes.c_int] * 3, LONG]
LIBC.mprotect.argtypes, LIBC.munmap.argtypes = [POINTER, LONG, ctypes.c_int], [POINTER, LONG]
STEP = 64  # an output's inputs are filled up to a multiple of it, in int8.c


class Buffers:
    """Guarded copies of arrays, until the case is over."""

    def __init__(self, at_end: bool) -> None:
        self.at_end, self._mapped = at_end, list[tuple[int, int]]()

    def put(self, array: Array) -> Array:
        """A copy that ends at a guard page, or begins behind one."""
        flat = np.ascontiguousarray(array)
        whole = -(-max(1, flat.nbytes) // PAGE) * PAGE
        base = LIBC.mmap(None, whole + 2 * PAGE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        for guard in (base, base + PAGE + whole):
            assert LIBC.mprotect(guard, PAGE, 0) == 0
        self._mapped.append((base, whole + 2 * PAGE))
        at = base + PAGE + (whole - flat.nbytes if self.at_end else 0)
        raw = (ctypes.c_char * flat.nbytes).from_address(at)
        copy = np.frombuffer(raw, flat.dtype).reshape(flat.shape)
        copy[...] = flat
        return copy

    def free(self) -> None:
        for base, size in self._mapped:
            LIBC.munmap(base, size)


def at(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def wide(bf16: Array) -> Array:
    return (bf16.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def narrow(values: Array) -> Array:
    """bfloat16, rounded to the nearest, as 16 bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def values(rng: np.random.Generator, shape: Any, odd: bool) -> Array:
    """bfloat16: ordinary, or any bits."""
    if odd:
        return rng.integers(0, 1 << 16, shape, dtype=np.uint16)
    return narrow(rng.standard_normal(shape))


def check_rows(whole: Array, one: Callable[[int], Array]) -> None:
    for row in range(len(whole)):
        assert one(row).tobytes() == whole[row].tobytes(), f"row {row} has other bits alone"


def check_close(result: Array, wanted: Array, scale: Array) -> None:
    assert np.all(np.abs(result - wanted) <= np.abs(wanted) / 100 + 2e-4 * scale + 1e-30)


class Int8(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("w", "sums", "scale", "bias")),
        *((name, LONG) for name in ("inputs", "outputs", "most")),
        ("bf16", ctypes.c_int),
    )


class Weight(ctypes.Structure):
    _fields_ = (("w", POINTER), ("bias", POINTER), ("inputs", LONG), ("outputs", LONG))


def shape_of(rng: np.random.Generator) -> tuple[int, int, int]:
    """Inputs, outputs, rows."""
    return int(rng.integers(1, 330)), int(rng.integers(1, 90)), int(rng.integers(1, 40))


def int8(function: Any, rng: np.random.Generator, put: Callable[[Array], Array]) -> None:
    inputs, outputs, rows = shape_of(rng)
    odd, bf16 = rng.random() < 0.4, bool(rng.integers(2))
    w = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    padded = put(np.pad(w, ((0, 0), (0, -inputs % STEP))))
    scale = put((rng.random(outputs) / 100 + 1e-4).astype(np.float32))
    bias = put(rng.standard_normal(outputs).astype(np.float32)) if rng.random() < 0.5 else None
    x, residual = values(rng, (rows, inputs), odd), values(rng, (rows, outputs), odd)
    if not bf16:
        x, residual = (wide(v).astype(np.float32) for v in (x, residual))
    x, before, y = put(x), put(residual) if rng.random() < 0.5 else None, put(residual)
    largest = int(np.abs(w.astype(np.int64)).sum(1).max())
    most = min((1 << 15) - 1, ((1 << 31) - 1) // max(largest, 1))
    sums = put(w.sum(1, dtype=np.int32))
    made = Int8(at(padded), at(sums), at(scale), at(bias), inputs, outputs, most, bf16)
    function(ctypes.addressof(made), at(y), at(before), at(x), rows)

    def one(row: int) -> Array:
        own = put(y[row])
        part = None if before is None else put(before[row])
        function(ctypes.addressof(made), at(own), at(part), at(put(x[row])), 1)
        return own

    check_rows(y, one)
    if not odd:
        plain = (wide(v) if bf16 else v.astype(np.float64) for v in (x, y, residual))
        x64, y64, residual64 = plain
        w64 = w * scale[:, None].astype(np.float64)
        wanted = x64 @ w64.T + (0 if bias is None else bias) + (0 if before is None else residual64)
        check_close(y64, wanted, np.abs(x64).max(1, keepdims=True) * np.abs(w64).sum(1) + 1)


def product(function: Any, rng: np.random.Generator, put: Callable[[Array], Array]) -> None:
    inputs, outputs, rows = shape_of(rng)
    odd = rng.random() < 0.4
    w, x = put(values(rng, (outputs, inputs), odd)), put(values(rng, (rows, inputs), odd))
    bias = put(values(rng, outputs, odd)) if rng.random() < 0.5 else None
    before = put(values(rng, (rows, outputs), odd)) if rng.random() < 0.5 else None
    y, made = put(np.zeros((rows, outputs), np.uint16)), Weight(at(w), at(bias), inputs, outputs)
    function(ctypes.addressof(made), at(y), at(before), at(x), rows)

    def one(row: int) -> Array:
        own = put(y[row])
        part = None if before is None else put(before[row])
        function(ctypes.addressof(made), at(own), at(part), at(put(x[row])), 1)
        return own

    check_rows(y, one)
    if not odd:
        more = sum(wide(v) for v in (bias, before) if v is not None)
        scale = np.abs(wide(x)) @ np.abs(wide(w)).T + 1
        check_close(wide(y), wide(x) @ wide(w).T + more, scale)


def attention(attend: Any, rng: np.random.Generator, put: Callable[[Array], Array]) -> None:
    """Rows of a chain or a tree behind committed rows; stale rows between them hold NaN."""
    d, kv, group = 8 * int(rng.integers(1, 33)), int(rng.integers(1, 4)), int(rng.integers(1, 9))
    heads, rows, committed = kv * group, int(rng.integers(1, 20)), int(rng.integers(0, 300))
    tree = rng.random() < 0.5
    start = committed + (int(rng.integers(0, 40)) if tree else 0)
    parents = [int(rng.integers(max(-1, row - 4), row)) for row in range(rows)]
    parents = parents if tree else [row - 1 for row in range(rows)]
    query, cache = (
        values(rng, (rows, heads, d), False),
        values(rng, (start + rows, 2 * kv, d), False),
    )
    cache[committed:start] = 0x7FC0
    query, cache, out = put(query), put(cache), put(np.zeros((rows, heads, d), np.uint16))
    parent = put(np.array(parents, np.int32)) if tree else None
    scale = float(d**-0.5)
    attend(at(out), at(query), at(cache), at(parent), scale, rows, committed, start, heads, kv, d)
    seen: list[list[int]] = []
    for row, above in enumerate(parents):
        seen.append([*(seen[above] if above >= 0 else ()), start + row])

    def one(row: int) -> Array:
        own = put(out[row])
        path = put(np.concatenate((cache[:committed], cache[seen[row]])))
        length = len(path) - 1
        attend(at(own), at(put(query[row])), at(path), None, scale, 1, length, length, heads, kv, d)
        path64, query64 = wide(path), wide(query[row]).reshape(kv, group, d)
        scores = np.einsum("kgd,tkd->kgt", query64, path64[:, :kv]) * scale
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        v64 = path64[:, kv:]
        wanted, size = (np.einsum("kgt,tkd->kgd", chances, v) for v in (v64, np.abs(v64)))
        check_close(wide(own), wanted.reshape(heads, d), 10 * size.reshape(heads, d))
        return own

    check_rows(out, one)


def kernels(library: str, names: str) -> list[tuple[Callable[..., None], Any]]:
    """What to call, and the case that calls it."""
    native = ctypes.CDLL(library)
    kernels: list[tuple[Callable[..., None], Any]] = []
    for name in names.split(","):
        function = getattr(native, name)
        if name.startswith("attend"):
            function.argtypes = [*[POINTER] * 4, ctypes.c_float, *[LONG] * 6]
            kernels.append((attention, function))
            continue
        function.argtypes = [*[POINTER] * 4, LONG]
        kernels.append((int8 if name.startswith("int8") else product, function))
    return kernels


def main() -> None:
    library, names, seconds, seed, last = sys.argv[1:]
    LIBC.syscall(158, 0x1023, 18)  # asks for the registers of AMX
    native, number = kernels(library, names), 0
    np.seterr(all="ignore")  # NaN is meant
    until, handle = (
        time.monotonic() + float(seconds),
        os.open(last, os.O_WRONLY | os.O_CREAT, 0o600),
    )
    while time.monotonic() < until:
        os.pwrite(handle, f"{number:12}".encode(), 0)
        rng = np.random.default_rng([int(seed), number])
        case, function = native[number % len(native)]
        buffers = Buffers(bool(rng.integers(2)))
        case(function, rng, buffers.put)
        buffers.free()
        number += 1
    print(number)


if __name__ == "__main__":
    main()
