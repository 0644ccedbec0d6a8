"""The sub-layers of `engine=fused` with our own kernels, where a processor has them."""

from typing import Any

from torch import Tensor

from skipbench.contrib.cpu.elementwise import (
    attends,
    native_attention,
    native_norm,
    native_rotation,
    native_silu,
    supports_window,
)
from skipbench.lm.fused.sublayers import Attention, Mlp, RMSNorm
from skipbench.lm.llama import Norm
from skipbench.lm.metadata import AttentionMetadata


class CpuAttention(Attention):
    """`attention.c` where it takes the rows; it never needs them one by one."""

    @staticmethod
    def rms_norm(module: Any) -> Norm:
        return native_norm(module.weight.data, module.variance_epsilon) or RMSNorm(module)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        modules, *_ = given
        self._like = modules.norm.weight
        self._native = native_attention(self.cache, self.index, self.scale, self._like)
        self._rotate = None
        if modules.qk_norms is None:
            self._rotate = native_rotation(self.cache, self._like)

    def rotate_and_store(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, start: int
    ) -> Tensor:
        return (self._rotate or super().rotate_and_store)(qkv, cos, sin, rows, start)

    def one_by_one(self, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        found = self._attended(query, metadata)
        return super().one_by_one(query, metadata) if found is None else found

    def at_once(self, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        found = self._attended(query, metadata)
        return super().at_once(query, metadata) if found is None else found

    def _attended(self, query: Tensor, metadata: AttentionMetadata) -> Tensor | None:
        strict = self.strict and not self.padded_rows
        if self._native is None or not attends(metadata, self._like, strict):
            return None
        return self._native(query, metadata) if supports_window(metadata, self.window) else None


class CpuMlp(Mlp):
    """`silu_times` in one call."""

    rms_norm = staticmethod(CpuAttention.rms_norm)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        modules, *_ = given
        self.silu_times = native_silu(modules.norm.weight) or self.silu_times
