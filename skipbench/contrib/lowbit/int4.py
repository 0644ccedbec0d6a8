"""Weights in 4 bits per group of inputs for draft passes, by torch's kernel on a GPU (tinygemm): a
quarter of the bytes of bfloat16 is read.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.contrib.lowbit.int8 import CHUNK_BYTES
from skipbench.lm.cuda_graphs.ops import differs, first_line

GROUPS = (128, 64, 32)
"""Inputs that share a scale and a zero: the first of them that divides a weight's."""
OUTPUTS = 8
"""The kernel takes multiples of them."""
LARGEST, ZERO = 15, 8  # number of a group's largest weight, and the one that stands for its zero
SMALLEST = 1e-6  # least scale


def group_of(weight: Tensor) -> int | None:
    """Inputs per group of a weight [out, in]; `None` where the kernel has none for its shape."""
    outputs, inputs = weight.shape
    group = next((group for group in GROUPS if inputs % group == 0), None)
    return None if outputs % OUTPUTS else group


def quantized_groups(weight: Tensor, group: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Per chunk of outputs: scale and zero [out, in / group, 2] in bfloat16, and numbers [out, in /
    group, group] up to 15, with which `weight` is near `(number - 8) * scale + zero`.
    """
    for part in torch.split(weight, max(1, CHUNK_BYTES // (4 * weight.shape[1]))):
        wide = part.float().reshape(len(part), -1, group)
        least, most = wide.aminmax(dim=2)
        scale = ((most - least) / LARGEST).clamp_(min=SMALLEST).bfloat16()
        zero = (least + ZERO * scale).bfloat16()
        numbers = (wide - zero[..., None]).div_(scale[..., None].float()).round_().add_(ZERO)
        yield torch.stack((scale, zero), 2), numbers.clamp_(0, LARGEST)


def rounded(weight: Tensor, group: int) -> Tensor:
    """The weight [out, in] in 4 bits, expanded to its dtype: what the kernel multiplies by."""
    parts = []
    for scales, numbers in quantized_groups(weight, group):
        scale, zero = scales.float().unsqueeze(2).unbind(-1)
        parts.append(numbers.sub_(ZERO).mul_(scale).add_(zero).flatten(1).to(weight.dtype))
    return torch.cat(parts)


class Int4Weight:
    """A weight in 4 bits on a GPU, with the calls of `Weight`, for rows in bfloat16."""

    def __init__(self, weight: Tensor, bias: Tensor | None, group: int) -> None:
        """`weight`, `bias`: [out, in] and [out]; `group`: of `group_of`."""
        (self.outputs, self.inputs), self._group, self._bias = weight.shape, group, bias
        parts = [(s, n.to(torch.uint8).flatten(1)) for s, n in quantized_groups(weight, group)]
        pairs = torch.cat([n[:, ::2] << 4 | n[:, 1::2] for _, n in parts])
        self._held: Tensor = torch.ops.aten._convert_weight_to_int4pack(pairs, group // 16)
        self._scales = torch.cat([s for s, _ in parts]).transpose(0, 1).contiguous()

    @property
    def nbytes(self) -> int:
        """Bytes of this copy."""
        return self._held.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor, most: int | None = None) -> Tensor:
        """`x [T, in] -> [T, out]`; drafts are not verified, and `most` changes nothing."""
        held, group, scales = self._held, self._group, self._scales
        y: Tensor = torch.ops.aten._weight_int4pack_mm(x.contiguous(), held, group, scales)
        return y if self._bias is None else y.add_(self._bias)

    def added(self, residual: Tensor, x: Tensor, most: int | None = None) -> Tensor:
        """`residual` [T, out] + product; neither argument changes."""
        return residual + self(x)

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        """Adds the product to `hidden` [T, out], in its place."""
        hidden.add_(self(x))


def int4_fault(like: Tensor) -> str | None:
    """Why the kernel is not used for a dtype on a device; `None` where it gives what torch gives by
    the rounded weights, with every size of groups.
    """
    if like.device.type != "cuda" or like.dtype != torch.bfloat16:
        return "torch's kernel is one for bfloat16 on a GPU"
    try:
        for group in GROUPS:
            weight, x = (like.new_empty(n, 3 * group).normal_() for n in (5 * OUTPUTS, 3))
            wanted = F.linear(x, rounded(weight, group))
            if differs(Int4Weight(weight, None, group)(x), wanted):
                return f"torch's kernel with groups of {group} is not its product"
    except Exception as error:  # whatever a library or driver does
        return first_line(error)
    return None
