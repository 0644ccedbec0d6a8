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

from scripts.kernel_cases import CASES, LONG, POINTER, TYPES, Array, product, whole_pass

PAGE = mmap.PAGESIZE
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
