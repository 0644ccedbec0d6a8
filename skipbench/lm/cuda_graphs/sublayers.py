"""Sub-layers of Llama-like families as work over static buffers: no argument, no result, nothing
that depends on the length.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs.attention import AttentionBackend
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.fused.weights import LayerWeights
from skipbench.lm.layer import AttentionParts, MlpParts
from skipbench.lm.llama import rms_norm, rotated, silu_times

Work = Callable[[], None]
Linear = tuple[Tensor, Tensor | None]
"""Weight [in, out] and bias [out]."""


class Attention:
    """One layer's attention; `work` binds it to the buffers of a row count."""

    def __init__(
        self,
        parts: AttentionParts,
        weights: LayerWeights,
        index: int,
        window: int | None,
        cache: KVCache,
    ) -> None:
        self.index, self.window, self.cache = index, window, cache
        self.scale, self.norm, self.qk_norms = parts.scale, parts.norm, parts.qk_norms
        self.qkv, self.out = weights.qkv.transposed(), weights.output.transposed()
        self.heads = weights.output.inputs // cache.head_dim

    def work(self, buffers: GraphBuffers, bucket: int, attend: AttentionBackend) -> Work:
        """Attention over the rows of the cache as they are now; a cache that grows needs new
        work.
        """
        rows, heads, kv = self.cache.rows[self.index], self.heads, self.cache.kv_heads
        attended, mask = rows[:bucket], buffers.masks[bucket, self.window]
        shape = (buffers.rows, heads + 2 * kv, self.cache.head_dim)

        def run() -> None:
            qkv = _product(rms_norm(buffers.hidden, self.norm), self.qkv).view(shape)
            rotated_qk = rotated(qkv, kv, self.qk_norms, buffers.cos, buffers.sin)
            keys_values = torch.cat((rotated_qk[:, heads:], qkv[:, heads + kv :]), 1)
            rows.index_copy_(0, buffers.target, keys_values)
            out = attend(rotated_qk[:, :heads], attended, buffers, mask, self.scale)
            _add_product(buffers.hidden, out, self.out)

        return run


class Mlp:
    """One layer's gated MLP."""

    def __init__(self, parts: MlpParts, weights: LayerWeights) -> None:
        self.norm = parts.norm
        self.gate_up, self.down = weights.gate_up.transposed(), weights.down.transposed()

    def work(self, buffers: GraphBuffers) -> Work:
        def run() -> None:
            gate_up = _product(rms_norm(buffers.hidden, self.norm), self.gate_up)
            _add_product(buffers.hidden, silu_times(gate_up), self.down)

        return run


def _product(x: Tensor, linear: Linear) -> Tensor:
    weight, bias = linear
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def _add_product(hidden: Tensor, x: Tensor, linear: Linear) -> None:
    """hidden += x @ weight (+ bias), in the buffer itself."""
    weight, bias = linear
    hidden.addmm_(x, weight)
    if bias is not None:
        hidden.add_(bias)
