"""The sub-layers of Llama's form as work over static buffers, which a graph captures.

With Triton a product of up to 16 rows is our own kernel (`products`): it adds in one order
whatever the number of rows, and does what comes before and behind it. Of more rows the library's
products read the weights fewer times; an exact engine takes ours where it verifies them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs import ops, parts, products
from skipbench.lm.cuda_graphs.attention import BACKENDS
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import Work
from skipbench.lm.fused.weights import LayerWeights, Weight
from skipbench.lm.layer import AttentionParts, MlpParts
from skipbench.lm.llama import rms_norm, rotated, silu_times


def dense(weight: Any) -> tuple[Tensor, Tensor | None] | None:
    """A weight [N, K] and its bias for our kernels; `None` for a variant, or a part of a rank."""
    if not isinstance(weight, Weight) or weight.join is not None:
        return None
    across, bias = weight.transposed()
    return across.t().contiguous(), bias  # on a GPU it is


class Normed:
    """`RMS norm, x W^T + b` of one weight.

    Attributes:
        norm: the module before the product.
        weight: a `Weight`, or a variant of one.
    """

    def __init__(self, norm: Any, weight: Any) -> None:
        self.norm, self.weight, self.dense = norm, weight, dense(weight)

    def operands(self, x: Tensor) -> tuple[Any, ...]:
        """What `products` takes: the weight's kernel norms its input, but in float16, where a state
        times the norm's weight may overflow.
        """
        assert self.dense is not None
        if x.dtype == torch.float16:
            return products.rms_norm(x, *self._norm), *self.dense, None, 0.0
        return x, *self.dense, *self._norm

    @property
    def _norm(self) -> tuple[Tensor, float]:
        return self.norm.weight, self.norm.variance_epsilon

    def __call__(self, x: Tensor, triton: bool, own: bool) -> Tensor:
        """
        Args:
            triton: kernels of Triton work here.
            own: of the product too, if the weight has one.
        """
        if own and self.dense is not None:
            made: Tensor = products.linear(*self.operands(x))
            return made
        normed = products.rms_norm(x, *self._norm) if triton else rms_norm(x, self.norm)
        found: Tensor = self.weight(normed)
        return found


class Sublayer:
    """What attention and MLP have alike: a product behind their norm, and one that is added."""

    def __init__(self, norm: Any, first: Any, last: Any) -> None:
        self.first, self._last, self._last_dense = Normed(norm, first), last, dense(last)

    def add(self, hidden: Tensor, x: Tensor, own: bool) -> None:
        """Adds the last product to the state, in its place."""
        if own and self._last_dense is not None:
            products.linear_add(hidden, x, *self._last_dense)
        else:
            self._last.add_to(hidden, x)


class Attention(Sublayer):
    """One layer's attention as work over static buffers."""

    def __init__(
        self,
        parts: AttentionParts,
        weights: LayerWeights,
        index: int,
        cache: KVCache,
    ) -> None:
        super().__init__(parts.norm, weights.qkv, weights.output)
        self.index, self.cache, self.window, self.scale = index, cache, parts.window, parts.scale
        self.qk_norms = parts.qk_norms
        self.heads, kv = weights.output.inputs // cache.head_dim, cache.kv_heads
        self.shape = (self.heads + 2 * kv, cache.head_dim)
        self._norms: tuple[Any, ...] = (None, None, 0.0, 0.0)  # as the operators take them
        if self.qk_norms is not None:
            norms = self.qk_norms
            self._norms = (*(n.weight for n in norms), *(n.variance_epsilon for n in norms))

    def work(
        self,
        buffers: GraphBuffers,
        bucket: int,
        backend: str,
        own: bool,
        rows: Tensor | None = None,
        left: Tensor | None = None,
        whole: bool = False,
    ) -> Work:
        """Attention over the rows of the cache as they are now; a cache that grows needs new work.

        Args:
            own: products are our kernel's.
            rows: of another cache.
            left: where the queries [R, H, d] are left.
            whole: the layer's window hides nothing.
        """
        cached = self.cache.rows[self.index] if rows is None else rows
        window, triton = None if whole else self.window, backend == ops.TRITON
        attended = self._attention(cached, buffers, bucket, backend, window)

        def run() -> None:
            query = self.queries(buffers, cached, triton, own)
            if left is not None:
                left.copy_(query)
            self.add(buffers.hidden, attended(query), own)

        return run

    def queries(self, buffers: GraphBuffers, rows: Tensor, triton: bool, own: bool) -> Tensor:
        """Queries [R, H, d] at their positions; keys and values are written into `rows`."""
        cos, sin, target, kv = buffers.cos, buffers.sin, buffers.target, self.cache.kv_heads
        if own and self.first.dense is not None and self.qk_norms is None:
            operands = self.first.operands(buffers.hidden)
            made: Tensor = products.qkv_rotated(*operands, cos, sin, target, rows, kv)
            return made
        qkv = self.first(buffers.hidden, triton, own).view(buffers.rows, *self.shape)
        if triton:
            query: Tensor = ops.rotate_and_write(qkv, cos, sin, target, rows, *self._norms)
            return query
        rotated_qk = rotated(qkv, kv, self.qk_norms, cos, sin)
        keys_values = rotated_qk[:, self.heads :], qkv[:, self.heads + kv :]
        rows.index_copy_(0, target, torch.cat(keys_values, 1))
        return rotated_qk[:, : self.heads]

    def _attention(
        self, rows: Tensor, buffers: GraphBuffers, bucket: int, backend: str, window: int | None
    ) -> Callable[[Tensor], Tensor]:
        """`queries [R, H, d] -> [R, H * d]` over a bucket of the cache's `rows`."""
        if backend == ops.TRITON:
            places = buffers.bounds, buffers.depth, buffers.paths
            seen = parts.LONGEST if window is None else window
            return lambda query: parts.attend_parts(query, rows, *places, bucket, seen, self.scale)
        mask, attend = buffers.masks[bucket, window], BACKENDS[backend]
        return lambda query: attend(query, rows[:bucket], buffers, mask, self.scale)


class Mlp(Sublayer):
    """One layer's gated MLP, likewise."""

    def __init__(self, parts: MlpParts, weights: LayerWeights) -> None:
        super().__init__(parts.norm, weights.gate_up, weights.down)

    def work(self, buffers: GraphBuffers, backend: str, own: bool) -> Work:
        triton = backend == ops.TRITON
        inner = ops.silu_times if triton else silu_times

        def run() -> None:
            hidden = buffers.hidden
            if own and self.first.dense is not None:
                out = products.gated(*self.first.operands(hidden))
            else:
                out = inner(self.first(hidden, triton, own))
            self.add(hidden, out, own)

        return run
