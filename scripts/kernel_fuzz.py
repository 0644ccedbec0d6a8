"""The C kernels under odd shapes and values:
`python -m scripts.kernel_fuzz LIBRARY KERNELS SECONDS SEED LAST`; seconds of CPU time.

Every buffer ends at, or begins behind, a page that may not be touched. The cases, and what each
must give, are those of `kernel_cases.py`. The number of the case at hand stands in the file LAST: a
fault ends the process. Ctypes and numpy alone, so that LIBRARY may be built with sanitizers; the
structures are those of the C files.
"""

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.kernel_cases import (
    CASES,
    FLOAT,
    LONG,
    POINTER,
    TYPES,
    Array,
    Put,
    Weight,
    at,
    attention,
    bits,
    fields,
    norm,
    product,
    rotate,
    silu,
    values,
)

PAGE = mmap.PAGESIZE
PARTS = ("rms_norm", "silu_times", "rotate", "attend")
LIBC = ctypes.CDLL(None)
LIBC.mmap.restype, LIBC.mmap.argtypes = POINTER, [POINTER, LONG, *[ctypes.c_int] * 3, LONG]
LIBC.mprotect.argtypes, LIBC.munmap.argtypes = [POINTER, LONG, ctypes.c_int], [POINTER, LONG]


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


class Sublayer(ctypes.Structure):
    _fields_ = (
        *fields("first second first_weight second_weight both norm cache", "inner"),
        *(("eps", FLOAT), ("scale", FLOAT)),
    )


class Model(ctypes.Structure):
    _fields_ = fields("norm silu rotate attend", "size width kv d widest")


class Pass(ctypes.Structure):
    _fields_ = fields("parent cos sin", "rows committed start window")


def whole_pass(native: Any, rng: np.random.Generator, put: Put, bf16: bool) -> None:
    """Some sub-layers in one call, with the bits of a call for each."""
    kv, group, d = int(rng.integers(1, 4)), int(rng.integers(1, 4)), 8 * int(rng.integers(1, 9))
    rows, committed, heads = int(rng.integers(1, 9)), int(rng.integers(0, 60)), kv * group
    (width, *inner), kind = rng.integers(1, 120, 4).tolist(), "bfloat16" if bf16 else "float32"
    names = {case: f"{name}_{kind}" for name, case in CASES.items() if name in PARTS}
    parts = {case: getattr(native, name) for case, name in names.items()}
    parts[product] = getattr(native, f"multiply_{kind}")
    for case, function in parts.items():
        function.argtypes, function.restype = TYPES[case], None
    where = {case: ctypes.cast(function, POINTER).value for case, function in parts.items()}
    widest, start = max((heads + 2 * kv) * d, *(2 * n for n in inner)), committed + 3
    cos, sin = (put(values(rng, (rows, d), False, bf16)) for _ in range(2))
    parent = put(np.array([max(-1, row - 2) for row in range(rows)], np.int32))
    kept, made, caches, scale, eps = list[Any](), list[Sublayer](), list[Array](), 0.1, 1e-5
    x = put(values(rng, (rows, width), False, bf16))
    for size in inner:
        attends, own = bool(rng.integers(2)), put(values(rng, width, False, bf16))
        size = heads * d if attends else size
        shapes = (((heads + 2 * kv) * d if attends else 2 * size, width), (width, size))
        weights = [put(values(rng, shape, False, bf16)) for shape in shapes]
        described = [Weight(at(w), None, w.shape[1], w.shape[0]) for w in weights]
        rows_of = values(rng, (start + rows, 2 * kv, d), False, bf16)
        caches.append(put(rows_of))
        kept += [own, weights, described]
        addresses = map(ctypes.addressof, described)
        cache = at(caches[-1]) if attends else None
        pointers = *addresses, None, at(own), cache
        made.append(Sublayer(*[where[product]] * 2, *pointers, size, eps, scale))
    states = [put(np.zeros((len(made), rows, width), x.dtype)) for _ in range(2)]
    temp = put(np.zeros(rows * (width + 3 * widest), x.dtype))
    model = Model(*(where[case] for case in (norm, silu, rotate, attention)), x.itemsize)
    model.width, model.kv, model.d, model.widest = width, kv, d, widest
    passed = Pass(at(parent), at(cos), at(sin), rows, committed, start)
    chosen = (POINTER * len(made))(*map(ctypes.addressof, made))
    before = [cache.copy() for cache in caches]
    native.run_sublayers.argtypes = [*[POINTER] * 3, LONG, POINTER, POINTER, LONG, POINTER]
    of = ctypes.addressof(model), ctypes.addressof(passed), ctypes.addressof(chosen), len(made)
    native.run_sublayers(*of, at(x), at(states[0]), len(made), at(temp))
    after = [cache.copy() for cache in caches]
    for i, (s, cache) in enumerate(zip(made, caches, strict=True)):
        cache[:] = before[i]
        y, normed = states[1][i], put(np.zeros_like(x))
        wide_of = heads + 2 * kv if s.cache else 2
        first = put(np.zeros((rows, wide_of * (d if s.cache else s.inner)), x.dtype))
        query, mixed = (put(np.zeros((rows, s.inner), x.dtype)) for _ in range(2))
        parts[norm](at(normed), at(x), s.norm, eps, rows, width)
        parts[product](s.first_weight, at(first), None, at(normed), rows)
        if s.cache:
            written = at(cache[start:])
            parts[rotate](at(query), written, at(first), at(cos), at(sin), rows, heads, kv, d)
            sizes = rows, committed, start, heads, kv, d, 0
            parts[attention](at(mixed), at(query), s.cache, at(parent), scale, *sizes)
        else:
            parts[silu](at(mixed), at(first), rows, s.inner)
        parts[product](s.second_weight, at(y), at(x), at(mixed), rows)
        assert bits(cache) == bits(after[i])
        x = y
    assert bits(states[0]) == bits(states[1])


def kernels(library: str, names: str) -> list[tuple[Callable[..., None], Any, bool]]:
    """The case that calls each function, the function, and whether it takes bfloat16."""
    native, found = ctypes.CDLL(library), list[tuple[Callable[..., None], Any, bool]]()
    LIBC.syscall(158, 0x1023, 18)  # a process asks Linux for AMX, where there is any
    for name in names.split(","):
        case = next((CASES[start] for start in CASES if name.startswith(start)), product)
        if name == "run_sublayers":
            found += [(whole_pass, native, True), (whole_pass, native, False)]
            continue
        function = getattr(native, name)
        function.argtypes = TYPES[case]
        found.append((case, function, "float32" not in name))
    return found


def main() -> None:
    library, names, seconds, seed, last = sys.argv[1:]
    native, number = kernels(library, names), 0
    np.seterr(all="ignore")  # NaN is meant
    until, handle = float(seconds), os.open(last, os.O_WRONLY | os.O_CREAT, 0o600)
    while time.process_time() < until:
        os.pwrite(handle, f"{number:12}".encode(), 0)
        rng = np.random.default_rng([int(seed), number])
        case, function, bf16 = native[number % len(native)]
        buffers = Buffers(bool(rng.integers(2)))
        case(function, rng, buffers.put, bf16)
        buffers.free()
        number += 1
    print(number)


if __name__ == "__main__":
    main()
