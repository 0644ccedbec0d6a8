"""Weights in 8 bits for draft passes on a GPU: half the bytes of bfloat16 are read."""

import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op

from skipbench.contrib.lowbit import tiles
from skipbench.contrib.lowbit.int8 import Int8Weight, quantized_rows
from skipbench.contrib.lowbit.tiles import INT8_ROWS, int8_tile
from skipbench.lm.cuda_graphs import ops
from skipbench.lm.cuda_graphs.ops import differs, first_line


@custom_op("skipbench::int8_linear", mutates_args=("out",))
def int8_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
) -> None:
    """`out` [R, out] = `x` [R, in] by `weight` [out, in] of 8 bits, a factor per output, + `bias` +
    `residual`, which may be `out`.
    """
    from skipbench.contrib.lowbit import int8_triton

    (rows, inputs), outputs = x.shape, len(weight)
    block_n, block_k, stages = int8_tile(outputs, inputs, x.dtype, x.device)
    with ops.device_of(x):
        int8_triton.int8_linear[-(-outputs // block_n), -(-rows // INT8_ROWS)](
            x, weight, weight_scale, x if bias is None else bias,  # what is not there is not read
            x if residual is None else residual, out, rows, inputs, outputs,
            BIASED=bias is not None, ADDED=residual is not None, BLOCK_M=INT8_ROWS,
            BLOCK_N=block_n, BLOCK_K=block_k, num_warps=4, num_stages=stages,
        )  # fmt: skip


class GpuInt8Weight(Int8Weight):
    """`Int8Weight` on a GPU, by a Triton kernel. Where Triton is missing or its product
    is not torch's, torch multiplies, which takes longer than by the weight itself.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, fault: str | None) -> None:
        """`weight`, `bias`: [out, in] and [out]; `fault`: of `int8_fault`."""
        (self.outputs, self.inputs), self._dtype = weight.shape, weight.dtype
        self._scale, self._held = quantized_rows(weight)
        self._sums = self._held[:0]
        self._bias, self._plain = bias, None
        self._fault = fault

    def dequantized(self) -> Tensor:
        return self._held * self._scale[:, None]

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        self._into(x, hidden, hidden)

    def _multiply(self, x: Tensor, residual: Tensor | None) -> Tensor:
        out = x.new_empty(x.shape[0], self.outputs)
        self._into(x.contiguous(), residual, out)
        return out

    def _into(self, x: Tensor, residual: Tensor | None, out: Tensor) -> None:
        parts = x, self._held, self._scale, self._bias, residual, out
        (int8_linear if self._fault is None else plain_int8_linear)(*parts)


def plain_int8_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
) -> None:
    """`int8_linear` by torch's operators."""
    y = F.linear(x, weight.to(x.dtype)).float() * weight_scale
    y = y if bias is None else y + bias
    out.copy_(y if residual is None else y + residual)


def int8_fault(like: Tensor) -> str | None:
    """Why the kernel is not used on a device; `None` where all its tiles give what torch gives."""
    if not ops.at_hand(like.device):
        return "Triton is not installed"
    some, many, long = (n + 8 for n in (tiles.SOME_OUTPUTS, tiles.MANY_OUTPUTS, tiles.LONG_INPUTS))
    shapes = (40, 200), (some, 200), (many, 200), (some, long)  # the last tile is not full
    try:
        wrong = next((shape for shape in shapes if _tile_differs(like, *shape)), None)
        return f"its kernel of {wrong} does not give what torch gives" if wrong else None
    except Exception as error:  # whatever its compiler or driver does
        return first_line(error)


def _tile_differs(like: Tensor, outputs: int, inputs: int) -> bool:
    """Of a drawn weight, bias and residual."""
    weight, x = (like.new_empty(n, inputs).normal_() for n in (outputs, 3))
    scale, rounded = quantized_rows(weight)
    bias, residual, ours, torchs = (weight.new_ones(n, outputs) for n in (1, 3, 3, 3))
    parts = x, rounded, scale, bias[0], residual
    int8_linear(*parts, ours)
    plain_int8_linear(*parts, torchs)
    return differs(ours, torchs)
