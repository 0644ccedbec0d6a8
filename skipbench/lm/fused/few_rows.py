"""The layout `few_rows`: weights as Hugging Face keeps them, multiplied by `few_rows.c`, which is
compiled at first use.

For bfloat16 on a CPU with AVX-512 bf16. One row costs what reading the weights costs; with AMX so
do 16. A row has the same bits alone and among others, by construction: the order of additions of an
output depends on the number of inputs alone.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.config.paths import cache_folder
from skipbench.runs.provenance import cpu_flags

FEW_ROWS = "few_rows"
MOST_ROWS = 64
"""Above it torch multiplies, in another order: prompts are bound by arithmetic, not by memory."""
SOURCE = Path(__file__).with_name("few_rows.c")
COMPILERS = ("gcc", "cc", "clang")
OPTIONS = "-O3 -shared -fPIC -fopenmp -mavx512f -mavx512bw -mavx512vl -mavx512bf16 -mamx-tile"
OPTIONS += " -mamx-bf16"

Product = Callable[[Tensor], Tensor]
Sum = Callable[[Tensor, Tensor], Tensor]


class _Weight(ctypes.Structure):
    """As `Weight` of the C file."""

    _fields_ = (
        ("w", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_long),
        ("outputs", ctypes.c_long),
    )


class UnavailableError(Exception):
    """What this machine lacks, and what to do."""


def compiled() -> Path:
    """The library, compiled in a second where the cache folder has none of this source. Processes
    that compile at the same time each put a whole file in its place, so that nothing is locked.

    Raises:
        UnavailableError: no compiler, one that fails, or a folder that cannot be written to.
    """
    name = hashlib.sha256(SOURCE.read_bytes() + OPTIONS.encode()).hexdigest()[:16]
    library = cache_folder() / f"few_rows-{name}.so"
    try:
        if not library.exists():
            compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
            if compiler is None:
                raise UnavailableError("no C compiler on the PATH; install gcc 11 or later")
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=library.parent, prefix=".few_rows-") as folder:
                made = Path(folder, library.name)
                subprocess.run(
                    [compiler, *OPTIONS.split(), str(SOURCE), "-o", str(made)],
                    check=True,
                    capture_output=True,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    timeout=120,
                )
                made.replace(library)
        if library.stat().st_uid not in (0, os.geteuid()):
            raise UnavailableError(f"{library} belongs to another user; remove it")
    except subprocess.CalledProcessError as error:
        said = " ".join((error.stderr or "").split())[:120]
        raise UnavailableError(f"{compiler} failed: {said}; install gcc 11 or later") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{compiler} took over {error.timeout:.0f} s") from error
    except OSError as error:
        raise UnavailableError(f"{error}; make {library.parent} writable") from error
    return library


@functools.cache
def functions() -> dict[str, Any]:
    """The C functions that run here by kernel, `amx` and `avx512`, the best one first.

    Raises:
        UnavailableError: as `compiled`, or a processor without the instructions.
    """
    flags, library = cpu_flags(), None
    if not {"avx512_bf16", "avx512bw", "avx512vl"} <= flags:
        raise UnavailableError("the processor has no AVX-512 bf16")
    path = compiled()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise UnavailableError(f"{' '.join(str(error).split())}; remove {path}") from error
    found = {"avx512": library.with_vectors}
    if {"amx_tile", "amx_bf16"} <= flags and library.tiles_allowed():
        found = {"amx": library.with_tiles} | found
    for function in found.values():
        function.argtypes, function.restype = [ctypes.c_void_p] * 4 + [ctypes.c_long], None
    return found


def few_rows_products(weight: Tensor, bias: Tensor | None, kernel: str) -> tuple[Product, Sum]:
    """`x [T, in] -> [T, out]` and `residual, x -> residual + product`, rounded once.

    Args:
        weight, bias: [out, in] and [out] in bfloat16, without gaps; used where they are.
        kernel: one of `functions`.
    """
    function, (outputs, inputs) = functions()[kernel], weight.shape
    bias_at = None if bias is None else bias.data_ptr()
    described = _Weight(weight.data_ptr(), bias_at, inputs, outputs)
    at, dtype, empty = ctypes.addressof(described), torch.bfloat16, torch.empty
    used = (described, weight, bias)  # the C function reads their memory

    def product(x: Tensor, residual: Tensor | None = None, used: Any = used) -> Tensor:
        rows = x.shape[0]
        if rows > MOST_ROWS:
            y = F.linear(x, weight, bias)
            return y if residual is None else residual + y
        if not x.is_contiguous():
            x = x.contiguous()
        y = empty((rows, outputs), dtype=dtype)
        if residual is None:
            function(at, y.data_ptr(), None, x.data_ptr(), rows)
        else:
            residual = residual.contiguous()
            function(at, y.data_ptr(), residual.data_ptr(), x.data_ptr(), rows)
        return y

    return product, lambda residual, x: product(x, residual)


@functools.cache
def few_rows_kernel() -> tuple[str | None, str | None]:
    """The best kernel that runs here and agrees with `F.linear`, and, where there is none, why."""
    try:
        kernel = next(iter(functions()))
    except UnavailableError as error:
        return None, str(error)
    generator = torch.Generator().manual_seed(0)
    w, x, before = (
        torch.randn(size, generator=generator).to(torch.bfloat16)
        for size in ((72, 80), (20, 80), (20, 72))
    )
    product, added = few_rows_products(w, None, kernel)
    wanted = F.linear(x.float(), w.float())
    for found, right in ((product(x), wanted), (added(before, x), wanted + before.float())):
        if not torch.allclose(found.float(), right, rtol=1 / 128, atol=1e-3):
            return None, f"its {kernel} kernel does not agree with torch.nn.functional.linear"
    return kernel, None
