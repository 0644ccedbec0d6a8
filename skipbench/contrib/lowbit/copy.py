"""Variants `int8` and `int4` of an engine's weights: copies made at first use, for drafts."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from torch import Tensor

from skipbench.contrib.lowbit.int4 import GROUPS, OUTPUTS, Int4Weight, group_of, int4_fault, rounded
from skipbench.contrib.lowbit.int8 import NATIVE, Int8Weight, int8_kernel
from skipbench.contrib.lowbit.int8_gpu import GpuInt8Weight, int8_fault
from skipbench.lm.cuda_graphs import ops
from skipbench.lm.engine import Sublayer
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.fused.weights import LayerWeights, Weight


class Copy(ABC):
    """The weights of an engine in fewer bits; layers and head are quantised at first use."""

    bits: int

    def __init__(self, engine: FusedEngine) -> None:
        self._engine = engine
        self.nbytes = 0
        """Of the parts made so far."""

    @abstractmethod
    def quantized(self, weight: Weight) -> tuple[Any, int]:
        """A weight in fewer bits, with the calls of `Weight`, and its bytes."""

    @property
    @abstractmethod
    def fault(self) -> str | None:
        """Why torch multiplies by the rounded weights; `None` where a kernel does."""

    @property
    def fast(self) -> bool:
        """True if there is a kernel for the engine's dtype on its device."""
        return self.fault is None

    @cached_property
    def layers(self) -> list[LayerWeights]:
        """Every layer's weights in fewer bits."""
        return [LayerWeights(*map(self._made, weights)) for weights in self._engine.layers]

    @cached_property
    def sublayers(self) -> list[Sublayer]:
        """As those of `Engine`."""
        return self._engine.made_of(self.layers, f"int{self.bits}")

    @cached_property
    def _head(self) -> Any:
        return self._made(self._engine.head_weight)

    def head(self, hidden: Tensor) -> Tensor:
        """As that of `Engine`."""
        made: Tensor = self._head(self._engine.final_norm(hidden))
        return made

    def notes(self) -> list[str]:
        """A line on its size, and on what multiplies by it."""
        if not self.nbytes:
            return []
        size = f"a copy of weights in {self.bits} bits for drafts takes {self.nbytes >> 20} MiB"
        why = f"; torch multiplies by it, no faster than by the weights ({self.fault})"
        return [f"{size}{why if self.fault else ''}"]

    def _made(self, weight: Weight) -> Any:
        made, nbytes = self.quantized(weight)
        self.nbytes += nbytes
        return made


class Int8Copy(Copy):
    """In 8 bits, with a scale per output."""

    bits = 8

    @cached_property
    def fault(self) -> str | None:
        like = self._engine.embedding
        return int8_kernel()[1] if like.device.type == "cpu" else int8_fault(like)

    @property
    def fast(self) -> bool:
        like = self._engine.embedding
        if like.device.type == "cpu":
            return like.dtype in NATIVE and int8_kernel()[0] is not None
        return ops.at_hand(like.device)

    def quantized(self, weight: Weight) -> tuple[Any, int]:
        across, bias = weight.transposed()
        if across.device.type == "cpu":
            made = Int8Weight(across.t(), bias)
        else:
            made = GpuInt8Weight(across.t(), bias, self.fault)
        return made, made.nbytes


class Int4Copy(Copy):
    """In 4 bits, with a scale and a zero per group of inputs; a weight that has no groups stays as
    it is.
    """

    bits = 4

    def __init__(self, engine: FusedEngine) -> None:
        super().__init__(engine)
        self._kept = 0  # weights that stay as they are

    @cached_property
    def fault(self) -> str | None:
        return int4_fault(self._engine.embedding)

    def quantized(self, weight: Weight) -> tuple[Any, int]:
        across, bias = weight.transposed()
        group = group_of(across.t())
        if group is None:
            self._kept += 1
            return weight, 0
        if self.fault is None:
            made = Int4Weight(across.t(), bias, group)
            return made, made.nbytes
        expanded = rounded(across.t(), group)
        return type(weight)(expanded, bias), expanded.nbytes

    def notes(self) -> list[str]:
        why = f"inputs that are no multiple of {GROUPS[-1]}, or outputs that are none of {OUTPUTS}"
        kept = f"drafts in 4 bits read {self._kept} weights as they are, with {why}"
        return [*super().notes(), *([kept] if self._kept else [])]
