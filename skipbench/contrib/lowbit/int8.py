"""Weights in 8 bits for draft passes on a CPU, multiplied by `int8.c`.

A row of activations becomes integers of up to 16 bits on the fly, so that only the weights lose
precision: 16-bit products cost no more than 8-bit ones where memory bounds the time. A row has the
same bits alone and among others, and on every processor: sums of integers are exact.
"""

import ctypes
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.contrib.cpu.few_rows import Native
from skipbench.contrib.cpu.native import (
    ARGUMENTS,
    AVX2,
    UnavailableError,
    address,
    library,
    tiles_allowed,
)
from skipbench.runs.provenance import cpu_flags

LARGEST = 127
SMALLEST = 2.0**-64
"""Least largest weight of an output: the scale of one of zeros, made denormal, would be a hundred
times slower.
"""
NATIVE = (torch.float32, torch.bfloat16)  # dtypes of activations that the kernels take
INPUTS = 64  # an output's are filled up with 0 to a multiple of it
CHUNK_BYTES = 64 << 20  # of weights that are quantised at once


class _Weight(ctypes.Structure):
    """As `Weight` of the C file."""

    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("w", "sums", "scale", "bias")),
        *(("inputs", ctypes.c_long), ("outputs", ctypes.c_long), ("most", ctypes.c_long)),
        ("bf16", ctypes.c_int),
    )


@functools.cache
def functions() -> dict[str, Any]:
    """The C functions that run here by kernel, the best one first. Raises UnavailableError as
    `library`.
    """
    native = library(AVX2)
    found = {"avx2": native.int8_avx2}
    if {"avx512f", "avx512bw", "avx512_vnni"} <= cpu_flags():
        found = {"avx512": native.int8_avx512} | found
        if "amx_int8" in cpu_flags() and tiles_allowed():
            found = {"amx": native.int8_amx} | found
    for function in found.values():
        function.argtypes, function.restype = ARGUMENTS["multiply"], None
    return found


@functools.cache
def int8_kernel() -> tuple[str | None, str | None]:
    """The best kernel that runs here and agrees with torch, and, where there is none, why."""
    try:
        kernel = next(iter(functions()))
    except UnavailableError as error:
        return None, str(error)
    generator = torch.Generator().manual_seed(0)
    shapes = (71, 130), (9, 130), (9, 71)
    w, x, before = (torch.randn(shape, generator=generator) for shape in shapes)
    for dtype, close in ((torch.float32, 1e-3), (torch.bfloat16, 1 / 64)):
        made = Int8Weight(w.to(dtype), None, kernel)
        wanted = F.linear(x.to(dtype).float(), made.dequantized()) + before.to(dtype).float()
        for rows in (9, 4, 1):  # tiles, and vectors of several and of few rows
            found = made.added(before[:rows].to(dtype), x[:rows].to(dtype)).float()
            if not torch.allclose(found, wanted[:rows], rtol=close, atol=0.02):
                return None, f"its {kernel} kernel does not agree with torch.nn.functional.linear"
    return kernel, None


class Int8Weight:
    """A weight as integers up to 127 with one scale per output, with the calls of `Weight`. Where
    there is no kernel, torch multiplies by the rounded weights in the dtype that they had.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, kernel: str | None = None) -> None:
        """
        Args:
            weight, bias: [out, in] and [out], in float32 or bfloat16.
            kernel: one of `functions`; None: the one of `int8_kernel`.
        """
        (self.outputs, self.inputs), self._dtype = weight.shape, weight.dtype
        kernel = kernel or (int8_kernel()[0] if weight.dtype in NATIVE else None)
        self._bias = None if bias is None else bias.float().contiguous()
        self._plain, self._sums = None, torch.empty(0, dtype=torch.int32)
        if kernel is None:
            self._scale, rounded = quantized_rows(weight)
            self._plain = (rounded * self._scale[:, None]).to(self._dtype)
            self._held = rounded[:0]
            return
        weight, width = weight.contiguous(), -(-self.inputs // INPUTS) * INPUTS
        self._held = torch.empty((self.outputs, width), dtype=torch.int8)
        self._scale = torch.empty(self.outputs)
        self._sums = torch.empty(self.outputs, dtype=torch.int32)
        written = self._held, self._scale, self._sums
        largest_sum = library(AVX2).quantize_weight(
            *(ctypes.c_void_p(t.data_ptr()) for t in (*written, weight)),
            *(ctypes.c_long(self.inputs), ctypes.c_long(self.outputs)),
            weight.dtype == torch.bfloat16,
        )
        # the largest magnitude of activations with which no sum exceeds 32 bits
        most = min((1 << 15) - 1, ((1 << 31) - 1) // max(largest_sum, 1))
        self._described = _Weight(
            *(self._held.data_ptr(), self._sums.data_ptr(), self._scale.data_ptr()),
            None if self._bias is None else self._bias.data_ptr(),
            *(self.inputs, self.outputs, most, weight.dtype == torch.bfloat16),
        )
        self._at, self._function = ctypes.addressof(self._described), functions()[kernel]

    @property
    def native(self) -> Native | None:
        """As `FewRows.native`; `None` where torch multiplies."""
        if self._plain is not None:
            return None
        return address(self._function), self._at

    @property
    def nbytes(self) -> int:
        """Bytes of this copy."""
        held = (self._held, self._sums, self._scale, self._bias, self._plain)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def dequantized(self) -> Tensor:
        """The rounded weight [out, in], in float32."""
        return self._held[:, : self.inputs] * self._scale[:, None]

    def __call__(self, x: Tensor, most: int | None = None) -> Tensor:
        """`x [T, in] -> [T, out]`; `most` changes nothing: no row depends on others."""
        return self._multiply(x, None)

    def added(self, residual: Tensor, x: Tensor, most: int | None = None) -> Tensor:
        """`residual` [T, out] + product; neither argument changes."""
        return self._multiply(x, residual.contiguous())

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        """Adds the product to `hidden` [T, out], in its place."""
        hidden.copy_(self.added(hidden, x))

    def _multiply(self, x: Tensor, residual: Tensor | None) -> Tensor:
        if self._plain is not None:
            bias = None if self._bias is None else self._bias.to(self._dtype)
            y = F.linear(x, self._plain, bias)
            return y if residual is None else residual + y
        x, y = x.contiguous(), x.new_empty((x.shape[0], self.outputs))
        before = None if residual is None else residual.data_ptr()
        self._function(self._at, y.data_ptr(), before, x.data_ptr(), x.shape[0])
        return y


def quantized_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Scale [out] in float32 and integers [out, in] up to 127, whose product is near `weight`."""
    scale = torch.empty(len(weight), device=weight.device)
    rounded = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    step = max(1, CHUNK_BYTES // (4 * weight.shape[1]))
    parts = (torch.split(t, step) for t in (weight, scale, rounded))
    for part, factor, to in zip(*parts, strict=True):
        wide = part.float()
        factor.copy_(wide.abs().amax(1).clamp_(min=SMALLEST) / LARGEST)
        to.copy_((wide / factor[:, None]).round_().clamp_(-LARGEST, LARGEST))
    return scale, rounded
