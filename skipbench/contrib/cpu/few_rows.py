"""Products of few rows: weights as Hugging Face keeps them, multiplied by `few_rows.c`
(compiled for AVX-512 bf16, and for AVX2) or, with AMX, by `few_rows_amx.c`.

One row costs what reading the weights costs; with AMX so do 16. A row has the same bits alone and
among others, by construction: the order of additions of an output depends on the number of inputs
alone.
"""

import contextlib
import ctypes
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.contrib.cpu.native import UnavailableError, address, function, tiles_allowed
from skipbench.runs.provenance import cpu_flags

MOST_ROWS = 64  # of every kernel, in the order of additions of one row; with tiles more
MOST_WITH_TILES, MOST_INPUTS = 384, 600_000  # rows, and rows times inputs: x stays in the L2 cache
Native = tuple[int | None, int]


class _Weight(ctypes.Structure):
    """As `Weight` of the C file."""

    _fields_ = (
        *(("w", ctypes.c_void_p), ("bias", ctypes.c_void_p)),
        *(("inputs", ctypes.c_long), ("outputs", ctypes.c_long)),
    )


@functools.cache
def functions(dtype: torch.dtype) -> dict[str, Any]:
    """The C functions that run here on weights of a dtype, by kernel (`amx`, `avx512`, `avx2`), the
    best one first. Raises UnavailableError as `library`.
    """
    available: dict[str, Any] = {}
    if dtype == torch.bfloat16:
        with contextlib.suppress(UnavailableError):
            if "amx_bf16" in cpu_flags() and tiles_allowed():
                available["amx"] = function("multiply", dtype, "amx")
            available["avx512"] = function("multiply", dtype, "avx512")
    elif dtype != torch.float32:
        raise UnavailableError(f"no kernel for {dtype}")
    available["avx2"] = function("multiply", dtype, "avx2")
    return available


def most_rows(kernel: str, inputs: int) -> int:
    """Rows above which torch multiplies, in another order: so many are bound by arithmetic. Tiles
    read all of x for every 32 outputs.
    """
    tiles = min(MOST_WITH_TILES, MOST_INPUTS // inputs) if kernel == "amx" else 0
    return max(MOST_ROWS, tiles)


class FewRows:
    """`x [T, in] -> [T, out]`, and the same added to a residual [T, out], rounded once."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernel: str) -> None:
        """
        Args:
            weight, bias: [out, in] and [out] in float32 or bfloat16, without gaps; used where they
                are.
            kernel: one of `functions`.
        """
        self._weight, self._bias, self._function = weight, bias, functions(weight.dtype)[kernel]
        self._outputs, inputs = weight.shape
        self._most = most_rows(kernel, inputs)
        bias_at = None if bias is None else bias.data_ptr()
        self._described = _Weight(weight.data_ptr(), bias_at, inputs, self._outputs)
        self._at = ctypes.addressof(self._described)
        # without AVX-512 torch's products in bfloat16 take six times as long as those in float32
        self._widens = kernel == "avx2" and weight.dtype == torch.bfloat16

    @property
    def native(self) -> Native:
        """Addresses of the C function, for calls from C, and of the weight as it takes it."""
        return address(self._function), self._at

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        rows = x.shape[0]
        if rows > self._most:
            y = self._many_rows(x)
            return y if residual is None else residual + y
        x, y = x.contiguous(), x.new_empty((rows, self._outputs))
        residual = None if residual is None else residual.contiguous()
        before = None if residual is None else residual.data_ptr()
        self._function(self._at, y.data_ptr(), before, x.data_ptr(), rows)
        return y

    def _many_rows(self, x: Tensor) -> Tensor:
        if not self._widens:
            return F.linear(x, self._weight, self._bias)
        wide = None if self._bias is None else self._bias.float()
        return F.linear(x.float(), self._weight.float(), wide).to(torch.bfloat16)


def native_mlp(gate_up: Native, down: Native) -> int | None:
    """Address of the C function that takes both products of an MLP, its bits the same; `None` where
    there is none for these weights.
    """
    if gate_up[0] is None or not gate_up[0] == down[0] == _tiles():
        return None
    first, second = (_Weight.from_address(at) for _, at in (gate_up, down))
    if first.bias or second.bias or second.inputs % 32:
        return None
    return address(function("mlp", torch.bfloat16, "amx"))


def _tiles() -> int | None:
    """Address of the C function with tiles, where it runs."""
    with contextlib.suppress(UnavailableError):
        return address(functions(torch.bfloat16).get("amx"))
    return None


@functools.cache
def few_rows_kernel(dtype: torch.dtype) -> tuple[str | None, str | None]:
    """The best kernel that runs here on weights of a dtype and agrees with `F.linear`, and, where
    there is none, why.
    """
    try:
        kernel = next(iter(functions(dtype)))
    except UnavailableError as error:
        return None, str(error)
    generator = torch.Generator().manual_seed(0)
    shapes = (72, 80), (20, 80), (20, 72)
    w, x, before = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    product, wanted = FewRows(w, None, kernel), F.linear(x.float(), w.float())
    for ours, right in ((product(x), wanted), (product(x, before), wanted + before.float())):
        if not torch.allclose(ours.float(), right, rtol=torch.finfo(dtype).eps, atol=1e-3):
            return None, f"its {kernel} kernel does not agree with torch.nn.functional.linear"
    return kernel, None
