"""The sub-layers of Llama's form as work over static buffers, which a graph captures."""

from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs import ops
from skipbench.lm.cuda_graphs.attention import BACKENDS, TRITON
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import Work
from skipbench.lm.fused.weights import LayerWeights
from skipbench.lm.layer import AttentionParts, MlpParts
from skipbench.lm.llama import rms_norm, rotated, silu_times


class Attention:
    """One layer's attention as work over static buffers."""

    def __init__(
        self, parts: AttentionParts, weights: LayerWeights, index: int, cache: KVCache
    ) -> None:
        self.index, self.cache, self.window, self.scale = index, cache, parts.window, parts.scale
        self.norm, self.qk_norms, self.qkv = parts.norm, parts.qk_norms, weights.qkv
        self.add_output = weights.output.add_to
        self.heads, kv = weights.output.inputs // cache.head_dim, cache.kv_heads
        self.shape = (self.heads + 2 * kv, cache.head_dim)
        self._norms: tuple[Any, ...] = (None, None, 0.0, 0.0)  # as the operators take them
        if self.qk_norms is not None:
            norms = self.qk_norms
            self._norms = (*(n.weight for n in norms), *(n.variance_epsilon for n in norms))

    def work(self, buffers: GraphBuffers, bucket: int, backend: str, triton: bool) -> Work:
        """Attention over the rows of the cache as they are now; a cache that grows needs new
        work.
        """
        rows, shape = self.cache.rows[self.index], (buffers.rows, *self.shape)

        def run() -> None:
            qkv = self.qkv(rms_norm(buffers.hidden, self.norm)).view(shape)
            out = self.attended(qkv, rows, buffers, bucket, backend, triton)
            self.add_output(buffers.hidden, out)

        return run

    def attended(
        self,
        qkv: Tensor,
        rows: Tensor,
        buffers: GraphBuffers,
        bucket: int,
        backend: str,
        triton: bool,
    ) -> Tensor:
        """[R, H + 2 KV, d] -> [R, H * d], of a cache whose `rows` get the keys and values."""
        mask = buffers.masks[bucket, self.window]
        if backend == TRITON:
            out: Tensor = ops.attend(
                qkv, buffers.cos, buffers.sin, buffers.target, buffers.bounds, mask, rows,
                *self._norms, self.scale, 0,
            )  # fmt: skip
            return out
        query = self.rotated(qkv, rows, buffers, triton)
        return BACKENDS[backend](query, rows[:bucket], buffers, mask, self.scale)

    def rotated(self, qkv: Tensor, rows: Tensor, buffers: GraphBuffers, triton: bool) -> Tensor:
        """Queries [R, H, d]; keys and values are written into `rows`."""
        cos, sin, target, heads = buffers.cos, buffers.sin, buffers.target, self.heads
        if triton:
            query: Tensor = ops.rotate_and_write(qkv, cos, sin, target, rows, *self._norms)
            return query
        kv = self.cache.kv_heads
        rotated_qk = rotated(qkv, kv, self.qk_norms, cos, sin)
        rows.index_copy_(0, target, torch.cat((rotated_qk[:, heads:], qkv[:, heads + kv :]), 1))
        return rotated_qk[:, :heads]


class Mlp:
    """One layer's gated MLP, likewise."""

    def __init__(self, parts: MlpParts, weights: LayerWeights) -> None:
        self.norm, self.gate_up, self.add_down = parts.norm, weights.gate_up, weights.down.add_to

    def work(self, buffers: GraphBuffers, triton: bool) -> Work:
        inner = ops.silu_times if triton else silu_times

        def run() -> None:
            gate_up = self.gate_up(rms_norm(buffers.hidden, self.norm))
            self.add_down(buffers.hidden, inner(gate_up))

        return run
