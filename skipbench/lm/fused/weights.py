"""Fused weights: one product where Hugging Face's modules have several, in the same memory."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skipbench.lm.families import modules_of


def pass_bytes(model: Any) -> int:
    """Bytes of weights that a pass of one row reads: those of the layers, without experts that the
    row does not pass, and of the head; of the embedding table it only looks one row up.
    """
    modules = modules_of(model)
    every = [m for layer in modules.layers for of in layer for m in of.weighted]
    weights = {p for m in (*every, modules.norm, modules.head) for p in m.parameters()}
    held: int = sum(p.numel() * p.element_size() for p in weights)
    return held - sum(mlp.inactive_bytes for _, mlp in modules.layers)


class Weight:
    """`x [T, in] -> x W^T + b [T, out]`, and the same added to a residual.

    With `most`, no product takes more rows at once: libraries choose their kernel, and with it the
    order of a sum, by the number of rows.
    """

    same_bits = 1
    """Rows up to which a row has the bits that it has alone."""
    kernel = "torch"
    """What multiplies a few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight`, `bias`: [out, in] and [out], used where they are."""
        self._weight, self._bias = weight, bias
        self.outputs, self.inputs = weight.shape

    @cached_property
    def _across(self) -> Tensor:
        return self._weight.t()

    def transposed(self) -> tuple[Tensor, Tensor | None]:
        """The weight [in, out] as a plain tensor, and the bias [out]."""
        return self._across, self._bias

    def __call__(self, x: Tensor, most: int | None = None) -> Tensor:
        if most is not None and x.shape[0] > max(most, self.same_bits):
            return torch.cat([self(part) for part in torch.split(x, most)])
        return self.product(x)

    def added(self, residual: Tensor, x: Tensor, most: int | None = None) -> Tensor:
        """`residual` [T, out] + product; neither argument changes."""
        if most is not None and x.shape[0] > max(most, self.same_bits):
            parts = zip(torch.split(residual, most), torch.split(x, most), strict=True)
            return torch.cat([self.sum(*part) for part in parts])
        return self.sum(residual, x)

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        """Adds the product to `hidden` [T, out], in its place."""
        across, bias = self.transposed()
        hidden.addmm_(x, across)
        if bias is not None:
            hidden.add_(bias)

    def product(self, x: Tensor) -> Tensor:
        """`x W^T + b`."""
        if self._bias is None:
            return torch.mm(x, self._across)
        return torch.addmm(self._bias, x, self._across)

    def sum(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual` + `product`."""
        if self._bias is None:
            return torch.addmm(residual, x, self._across)
        return residual + self.product(x)


def joined(parameters: Sequence[Tensor]) -> Tensor:
    """One tensor of all rows, whose memory the parameters use from then on: theirs, where they lie
    one behind the other, as another engine left them.
    """
    parts = [p.data for p in parameters]
    if len(parts) == 1:
        return parts[0]
    first, storages = parts[0], {part.untyped_storage().data_ptr() for part in parts}
    ends = accumulate(map(Tensor.numel, parts), initial=first.storage_offset())
    behind = all(part.storage_offset() == at for part, at in zip(parts, ends, strict=False))
    if behind and len(storages) == 1 and all(map(Tensor.is_contiguous, parts)):
        return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
    whole = torch.cat(parts)
    for parameter, part in zip(parameters, torch.split(whole, [*map(len, parts)]), strict=True):
        parameter.data = part
    return whole


class LayerWeights(NamedTuple):
    """The fused weights of one decoder layer of Llama's form."""

    qkv: Any  # a `Weight`, or a variant of one with its calls
    output: Any
    gate_up: Any
    down: Any


class Weights:
    """Makes the fused weights of one model."""

    def fuse(self, parent: Any, names: Sequence[str]) -> Weight:
        """One weight of the linear modules `names` of `parent`, which use its memory from then
        on.
        """
        modules = [getattr(parent, name) for name in names]
        biases = [m.bias for m in modules if m.bias is not None]
        return self.made(joined([m.weight for m in modules]), joined(biases) if biases else None)

    def made(self, whole: Tensor, bias: Tensor | None) -> Weight:
        """A weight of the engine."""
        return Weight(whole, bias)

    def notes(self, like: Tensor) -> list[str]:
        """Lines on the parts that this machine lacks for weights like this one."""
        return []
