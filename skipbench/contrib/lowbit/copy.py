"""The variant `int8` of an engine's weights: a copy in 8 bits, made at first use, for drafts."""

from functools import cached_property

from torch import Tensor

from skipbench.contrib.lowbit.int8 import NATIVE, Int8Weight, int8_kernel
from skipbench.contrib.lowbit.int8_gpu import GpuInt8Weight, int8_fault
from skipbench.errors import SkipbenchError
from skipbench.lm.cuda_graphs import ops
from skipbench.lm.engine import Sublayer
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.fused.weights import LayerWeights, Weight


class Int8Copy:
    """The weights of an engine in 8 bits; layers and head are quantised at first use."""

    def __init__(self, engine: FusedEngine) -> None:
        self._engine = engine
        self.weights: list[Int8Weight] = []

    @property
    def fast(self) -> bool:
        """True if it has a kernel here, so that it may take less time."""
        if self._engine.head_weight.join is not None:
            return False
        like = self._engine.embedding
        if like.device.type == "cpu":
            return like.dtype in NATIVE and int8_kernel()[0] is not None
        return ops.at_hand(like.device)

    @property
    def nbytes(self) -> int:
        """Bytes of the parts made so far."""
        return sum(weight.nbytes for weight in self.weights)

    @cached_property
    def layers(self) -> list[LayerWeights]:
        """Every layer's weights in 8 bits."""
        return [LayerWeights(*map(self._quantized, weights)) for weights in self._engine.layers]

    @cached_property
    def sublayers(self) -> list[Sublayer]:
        """As those of `Engine`."""
        return self._engine.made_of(self.layers, "int8")

    @cached_property
    def _head(self) -> Int8Weight:
        return self._quantized(self._engine.head_weight)

    def head(self, hidden: Tensor) -> Tensor:
        """As that of `Engine`."""
        return self._head(self._engine.final_norm(hidden))

    def notes(self) -> list[str]:
        """A line on its size, and on what multiplies by it."""
        if not self.weights:
            return []
        fault = self.weights[0].fault
        slow = f"; torch multiplies by it, no faster than by the weights ({fault})" if fault else ""
        return [f"a copy of weights in 8 bits for drafts takes {self.nbytes >> 20} MiB{slow}"]

    def _quantized(self, weight: Weight) -> Int8Weight:
        if weight.join is not None:
            raise SkipbenchError(
                "engine=fused has products of 8 bits in one process only; use drafts without int8 "
                "in method.precision, method.head and method.skip"
            )
        across, bias = weight.transposed()
        if across.device.type == "cpu":
            made = Int8Weight(across.t(), bias)
        else:
            known = self.weights[0].fault if self.weights else int8_fault(across)
            made = GpuInt8Weight(across.t(), bias, known)
        self.weights.append(made)
        return made
