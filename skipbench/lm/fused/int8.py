"""Weights in 8, 6 and 4 bits for draft passes on a CPU, multiplied by `int8.c`.

A row of activations becomes integers of up to 16 bits on the fly, so that only the weights lose
precision: 16-bit products cost no more than 8-bit ones where memory bounds the time. A row has the
same bits alone and among others, and on every processor: sums of integers are exact.
"""

import ctypes
import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.fused.few_rows import Native
from skipbench.lm.fused.native import AVX2, UnavailableError, library, tiles_allowed
from skipbench.runs.provenance import cpu_flags

LARGEST = 127
SMALLEST = 2.0**-64
"""Least largest weight of an output: the scale of one of zeros, made denormal, would be a hundred
times slower.
"""
NATIVE = (torch.float32, torch.bfloat16)  # dtypes of activations that the kernels take
INPUTS = 64  # an output's are filled up with 0 to a multiple of it; those of one table below 8 bits
TABLES, PARTS = 64, 8  # as in the C file
POWER = 1.3  # 1.3 and 1.4 err least on SmolLM2-135M's weights, by 1.3 dB less than equal steps
CHUNK_BYTES = 64 << 20  # of weights that are quantised at once


class _Tables(ctypes.Structure):
    """As `Tables` of the C file."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("integers", "nearest")),
        ("bits", ctypes.c_int),
    )


class _Weight(ctypes.Structure):
    """As `Weight` of the C file."""

    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("w", "groups", "tables", "sums", "scale", "bias")),
        *(("inputs", ctypes.c_long), ("outputs", ctypes.c_long), ("most", ctypes.c_long)),
        *(("bf16", ctypes.c_int), ("bits", ctypes.c_int)),
    )


@functools.cache
def functions() -> dict[str, Any]:
    """The C functions that run here by kernel, the best one first. Raises UnavailableError as
    `library`.
    """
    native = library(AVX2)
    found = {"avx2": native.int8_avx2}
    if {"avx512f", "avx512bw", "avx512_vnni", "avx512vbmi"} <= cpu_flags():
        found = {"avx512": native.int8_avx512} | found
        if "amx_int8" in cpu_flags() and tiles_allowed():
            found = {"amx": native.int8_amx} | found
    for function in found.values():
        function.argtypes, function.restype = [ctypes.c_void_p] * 4 + [ctypes.c_long], None
    return found


@functools.cache
def int8_kernel(bits: int = 8) -> tuple[str | None, str | None]:
    """The best kernel for weights of so many bits that runs here and agrees with torch, and, where
    there is none, why.
    """
    try:
        kernel = next(iter(functions()))
    except UnavailableError as error:
        return None, str(error)
    if bits < 8 and kernel == "avx2":
        return None, "the processor has no AVX-512 VNNI and VBMI"
    generator = torch.Generator().manual_seed(0)
    shapes = (71, 130), (9, 130), (9, 71)
    w, x, before = (torch.randn(shape, generator=generator) for shape in shapes)
    for dtype, close in ((torch.float32, 1e-3), (torch.bfloat16, 1 / 64)):
        made = Int8Weight(w.to(dtype), None, kernel, bits)
        wanted = F.linear(x.to(dtype).float(), made.dequantized()) + before.to(dtype).float()
        for rows in (9, 4, 1):  # tiles, and vectors of several and of few rows
            found = made.added(before[:rows].to(dtype), x[:rows].to(dtype)).float()
            if not torch.allclose(found, wanted[:rows], rtol=close, atol=0.02):
                return None, f"its {kernel} kernel does not agree with torch.nn.functional.linear"
    return kernel, None


class Tables(NamedTuple):
    """Integers that the places of a weight in 6 or 4 bits stand for."""

    integers: Tensor
    """int8 [TABLES, INPUTS]: table t goes from -127 (t + 1) / TABLES to 127 (t + 1) / TABLES."""
    nearest: Tensor
    """uint8 [TABLES, 128 PARTS]: the step from 0 that is next to a magnitude."""


@functools.cache
def tables(bits: int) -> Tables:
    """Steps are narrow about 0, where most weights are: the powers `POWER` of equal ones."""
    middle = 1 << (bits - 1)
    largest = (torch.arange(TABLES) + 1)[:, None] * (LARGEST / TABLES)
    levels = (largest * (torch.arange(middle) / (middle - 1)) ** POWER).round()
    bounds = (levels[:, 1:] + levels[:, :-1]) / 2
    magnitudes = (torch.arange(128 * PARTS) + 0.5) / PARTS
    nearest = torch.searchsorted(bounds, magnitudes.expand(TABLES, -1).contiguous())
    integers = torch.zeros(TABLES, INPUTS)
    integers[:, middle : 2 * middle] = levels
    integers[:, 1 : middle + 1] = -levels.flip(1)
    return Tables(integers.to(torch.int8), nearest.to(torch.uint8))


class Int8Weight:
    """A weight as integers up to 127 with one scale per output, with the calls of `Weight`. They
    are held in 8 bits, or in 6 or 4, places in a table per 64 inputs. Where there is no kernel,
    torch multiplies by the rounded weights in the dtype that they had.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, kernel: str | None = None, bits: int = 8
    ) -> None:
        """
        Args:
            weight, bias: [out, in] and [out], in float32 or bfloat16.
            kernel: one of `functions`; None: the one of `int8_kernel`.
            bits: per weight, 8, 6 or 4.
        """
        (self.outputs, self.inputs), self._dtype = weight.shape, weight.dtype
        self.bits = bits
        native = weight.dtype in NATIVE
        kernel = kernel or (int8_kernel(bits)[0] if native else None)
        self._bias = None if bias is None else bias.float().contiguous()
        self._plain, self._sums = None, torch.empty(0, dtype=torch.int32)
        self._groups = torch.empty(0, dtype=torch.uint8)
        if kernel is None:
            self._scale, rounded = quantized_rows(weight, bits)
            self._plain = (rounded * self._scale[:, None]).to(self._dtype)
            self._held = rounded[:0]
            return
        weight, width = weight.contiguous(), -(-self.inputs // INPUTS) * INPUTS
        self._held = torch.empty((self.outputs, width // 8 * bits), dtype=torch.uint8)
        known, described = None, None
        if bits < 8:
            self._groups = torch.empty((self.outputs, width // INPUTS), dtype=torch.uint8)
            known = tables(bits)
            described = _Tables(*(t.data_ptr() for t in known), bits)
        self._scale = torch.empty(self.outputs)
        self._sums = torch.empty(self.outputs, dtype=torch.int32)
        written = self._held, self._groups, self._scale, self._sums
        largest_sum = library(AVX2).quantize_weight(
            *(ctypes.c_void_p(t.data_ptr()) for t in (*written, weight)),
            *(ctypes.c_long(self.inputs), ctypes.c_long(self.outputs)),
            weight.dtype == torch.bfloat16,
            described and ctypes.byref(described),
        )
        # the largest magnitude of activations with which no sum exceeds 32 bits
        most = min((1 << 15) - 1, ((1 << 31) - 1) // max(largest_sum, 1))
        self._described = _Weight(
            *(self._held.data_ptr(), self._groups.data_ptr(), known and known.integers.data_ptr()),
            *(self._sums.data_ptr(), self._scale.data_ptr()),
            None if self._bias is None else self._bias.data_ptr(),
            *(self.inputs, self.outputs, most, weight.dtype == torch.bfloat16, bits),
        )
        self._at, self._function = ctypes.addressof(self._described), functions()[kernel]

    @property
    def fault(self) -> str | None:
        """Why torch multiplies; `None` where a kernel does."""
        return int8_kernel(self.bits)[1]

    @property
    def native(self) -> Native | None:
        """As `FewRows.native`; `None` where torch multiplies."""
        if self._plain is not None:
            return None
        return ctypes.cast(self._function, ctypes.c_void_p).value, self._at

    @property
    def nbytes(self) -> int:
        """Bytes of this copy."""
        held = (self._held, self._groups, self._sums, self._scale, self._bias, self._plain)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def dequantized(self) -> Tensor:
        """The rounded weight [out, in], in float32."""
        return self.integers()[:, : self.inputs] * self._scale[:, None]

    def integers(self) -> Tensor:
        """The integers [out, in] that are multiplied, filled up with 0."""
        if self.bits == 8:
            return self._held.view(torch.int8)
        packed = self._held.view(self.outputs, -1, 8 * self.bits)
        places = torch.cat([packed[..., :32] & 15, packed[..., :32] >> 4], -1)
        if self.bits == 6:
            upper = [(packed[..., 32:] >> shift & 3) << 4 for shift in (0, 2, 4, 6)]
            places |= torch.cat(upper, -1)
        rows = tables(self.bits).integers[self._groups.long()]
        return rows.gather(-1, places.long()).view(self.outputs, -1)

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


def quantized_rows(weight: Tensor, bits: int = 8) -> tuple[Tensor, Tensor]:
    """Scale [out] in float32 and integers [out, in] up to 127, whose product is near `weight`;
    below 8 bits those of the smallest table that holds 64 inputs.
    """
    scale = torch.empty(len(weight), device=weight.device)
    rounded = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    step = max(1, CHUNK_BYTES // (4 * weight.shape[1]))
    parts = (torch.split(t, step) for t in (weight, scale, rounded))
    for part, factor, to in zip(*parts, strict=True):
        wide = part.float()
        factor.copy_(wide.abs().amax(1).clamp_(min=SMALLEST) / LARGEST)
        steps = wide / factor[:, None]
        to.copy_(_placed(steps, bits) if bits < 8 else steps.round_().clamp_(-LARGEST, LARGEST))
    return scale, rounded


def _placed(steps: Tensor, bits: int) -> Tensor:
    """Integers [out, in] next to these numbers, per 64 inputs in the smallest table that holds them
    or in the one below, whichever errs less.
    """
    integers, nearest = (t.to(steps.device).flatten() for t in tables(bits))
    parts = F.pad(steps, (0, -steps.shape[1] % INPUTS)).view(len(steps), -1, INPUTS)
    magnitudes = parts.abs()
    holds = (magnitudes.amax(2, keepdim=True) * (TABLES / LARGEST)).long().clamp_(max=TABLES - 1)
    found = list[Tensor]()
    for table in (holds, (holds - 1).clamp_(min=0)):
        place = (magnitudes * PARTS).long().clamp_(max=128 * PARTS - 1)
        from_0 = nearest[table * (128 * PARTS) + place].long()
        middle = (1 << (bits - 1)) + table * INPUTS
        found.append(integers[torch.where(parts < 0, middle - from_0, middle + from_0)])
    errors = [(parts.double() - values).square().sum(2, keepdim=True) for values in found]
    best = torch.where(errors[1] < errors[0], found[1], found[0])
    return best.view(len(steps), -1)[:, : steps.shape[1]]
