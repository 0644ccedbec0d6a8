"""The sub-layers of Llama's form as work over static buffers, which a graph captures.

A product of up to 16 rows is our own kernel (`products`): it adds in one order
whatever the number of rows, and does what comes before and behind it. Of more rows the library's
products read the weights fewer times; an exact engine takes ours where it verifies them.
"""

from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs import attention, ops, products
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import Work
from skipbench.lm.fused.weights import LayerWeights, Weight
from skipbench.lm.layer import AttentionModules, MlpModules


def dense(weight: Any) -> tuple[Tensor, Tensor | None] | None:
    """A weight [N, K] and its bias for our kernels; `None` for a variant."""
    if not isinstance(weight, Weight):
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

    def __call__(self, x: Tensor, own: bool) -> Tensor:
        """`own`: by our kernel, if the weight has one."""
        if own and self.dense is not None:
            made: Tensor = products.linear(*self.operands(x))
            return made
        found: Tensor = self.weight(products.rms_norm(x, *self._norm))
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
        self, modules: AttentionModules, weights: LayerWeights, index: int, cache: KVCache
    ) -> None:
        super().__init__(modules.norm, weights.qkv, weights.output)
        self.index, self.cache, self.window = index, cache, modules.window
        self.scale, self.qk_norms = modules.scale, modules.qk_norms
        self.heads, kv = weights.output.inputs // cache.head_dim, cache.kv_heads
        self.shape = (self.heads + 2 * kv, cache.head_dim)
        self._norms: tuple[Any, ...] = (None, None, 0.0, 0.0)  # as the operators take them
        if self.qk_norms is not None:
            norms = self.qk_norms
            self._norms = (*(n.weight for n in norms), *(n.variance_epsilon for n in norms))

    def work(self, buffers: GraphBuffers, bucket: int, own: bool) -> Work:
        """Attention over the rows of the cache as they are now; a cache that grows needs new work.

        Args:
            own: products are our kernel's.
        """
        rows, seen = self.cache.rows[self.index], self.window or attention.LONGEST
        places = buffers.bounds, buffers.depth, buffers.paths

        def run() -> None:
            query = self.queries(buffers, rows, own)
            out = attention.attend_splits(query, rows, *places, bucket, seen, self.scale)
            self.add(buffers.hidden, out, own)

        return run

    def queries(self, buffers: GraphBuffers, rows: Tensor, own: bool) -> Tensor:
        """Queries [R, H, d] at their positions; keys and values are written into `rows`."""
        cos, sin, target = buffers.cos, buffers.sin, buffers.target
        if own and self.first.dense is not None and self.qk_norms is None:
            operands, kv = self.first.operands(buffers.hidden), self.cache.kv_heads
            made: Tensor = products.qkv_rotated(*operands, cos, sin, target, rows, kv)
            return made
        qkv = self.first(buffers.hidden, own).view(buffers.rows, *self.shape)
        query: Tensor = ops.rotate_and_write(qkv, cos, sin, target, rows, *self._norms)
        return query


class Mlp(Sublayer):
    """One layer's gated MLP, likewise."""

    def __init__(self, modules: MlpModules, weights: LayerWeights) -> None:
        super().__init__(modules.norm, weights.gate_up, weights.down)

    def work(self, buffers: GraphBuffers, bucket: int, own: bool) -> Work:
        """As that of `Attention`; it knows no bucket."""

        def run() -> None:
            hidden = buffers.hidden
            if own and self.first.dense is not None:
                out = products.gated(*self.first.operands(hidden))
            else:
                out = ops.silu_times(self.first(hidden, own))
            self.add(hidden, out, own)

        return run
