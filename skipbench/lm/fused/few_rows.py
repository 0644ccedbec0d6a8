"""The layout `few_rows`: weights as Hugging Face keeps them, multiplied by `few_rows.c`.

For bfloat16 on a CPU with AVX-512 bf16. One row costs what reading the weights costs; with AMX so
do 16. A row has the same bits alone and among others, by construction: the order of additions of an
output depends on the number of inputs alone.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.fused.native import UnavailableError, library
from skipbench.runs.provenance import cpu_flags

FEW_ROWS = "few_rows"
MOST_ROWS = 64
"""Above it torch multiplies, in another order: prompts are bound by arithmetic, not by memory."""
Product = Callable[[Tensor], Tensor]
Sum = Callable[[Tensor, Tensor], Tensor]


class _Weight(ctypes.Structure):
    """As `Weight` of the C file."""

    _fields_ = (
        *(("w", ctypes.c_void_p), ("bias", ctypes.c_void_p)),
        *(("inputs", ctypes.c_long), ("outputs", ctypes.c_long)),
    )


@functools.cache
def functions() -> dict[str, Any]:
    """The C functions that run here by kernel, `amx` and `avx512`, the best one first. Raises
    UnavailableError as `library`.
    """
    native, flags = library(), cpu_flags()
    found = {"avx512": native.with_vectors}
    if {"amx_tile", "amx_bf16"} <= flags and native.tiles_allowed():
        found = {"amx": native.with_tiles} | found
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
    at = ctypes.addressof(described)
    used = (described, weight, bias)  # the C function reads their memory

    def product(x: Tensor, residual: Tensor | None = None, used: Any = used) -> Tensor:
        rows = x.shape[0]
        if rows > MOST_ROWS:
            y = F.linear(x, weight, bias)
            return y if residual is None else residual + y
        x, y = x.contiguous(), x.new_empty((rows, outputs))
        residual = None if residual is None else residual.contiguous()
        before = None if residual is None else residual.data_ptr()
        function(at, y.data_ptr(), before, x.data_ptr(), rows)
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
