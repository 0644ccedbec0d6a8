"""Sub-layers of Llama-like families as work over static buffers: no argument, no result, nothing
that depends on the length.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs.attention import AttentionBackend
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.layer import AttentionParts, MlpParts

Work = Callable[[], None]


def fused(linears: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
    """One weight [in, out] (and bias [out] or None) of several linear modules: a view where they
    already are parts of one.
    """
    first = linears[0].weight.data
    widths = [m.weight.shape[0] for m in linears]
    offsets = [sum(widths[:i]) * first.stride(0) for i in range(len(widths))]
    base = first.storage_offset()
    together = all(
        m.weight.data.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and m.weight.data.stride() == first.stride()
        and m.weight.data.storage_offset() == base + offset
        for m, offset in zip(linears, offsets, strict=True)
    )
    if together:
        weight = first.as_strided((sum(widths), first.shape[1]), first.stride(), base)
    else:
        weight = torch.cat([m.weight.data for m in linears])
        for module, end in zip(linears, itertools.accumulate(widths), strict=True):
            module.weight.data = weight[end - len(module.weight) : end]  # nothing is stored twice
    biases = [m.bias for m in linears]
    return weight.t(), None if all(b is None for b in biases) else torch.cat(
        [b.data for b in biases]
    )


class Attention:
    """One layer's attention; `work` binds it to the buffers of a row count."""

    def __init__(
        self, parts: AttentionParts, index: int, window: int | None, config: Any, cache: KVCache
    ) -> None:
        self.index, self.window, self.cache = index, window, cache
        self.d, self.kv, self.heads = (
            parts.head_dim,
            config.num_key_value_heads,
            config.num_attention_heads,
        )
        self.scale, self.norm, self.norms = parts.scale, parts.norm, parts.qk_norms
        self.qkv, self.out = fused(parts.qkv), fused([parts.output])

    def work(self, buffers: GraphBuffers, bucket: int, attend: AttentionBackend) -> Work:
        """Attention over the rows of the cache as they are now; a cache that grows needs new
        work.
        """
        rows, d, kv, heads = self.cache.rows[self.index], self.d, self.kv, self.heads
        rotated = heads + kv

        def run() -> None:
            qkv = _product(_normed(buffers.hidden, self.norm), self.qkv).view(
                buffers.rows, heads + 2 * kv, d
            )
            rotated_qk = qkv[:, :rotated]
            if self.norms is not None:
                q_norm, k_norm = self.norms
                rotated_qk = torch.cat(
                    (
                        _normed(rotated_qk[:, :heads], q_norm),
                        _normed(rotated_qk[:, heads:], k_norm),
                    ),
                    1,
                )
            rotated_qk = torch.addcmul(
                rotated_qk * buffers.cos, torch.roll(rotated_qk, d // 2, -1), buffers.sin
            )
            rows.index_copy_(
                0, buffers.target, torch.cat((rotated_qk[:, heads:], qkv[:, rotated:]), 1)
            )
            out = attend(rotated_qk[:, :heads], rows, buffers, bucket, self.window)
            _add_product(buffers.hidden, out, self.out)

        return run


class Mlp:
    """One layer's gated MLP."""

    def __init__(self, parts: MlpParts) -> None:
        self.norm = parts.norm
        self.up, self.down = fused(parts.gate_up), fused([parts.down])

    def work(self, buffers: GraphBuffers) -> Work:
        def run() -> None:
            gate, up = _product(_normed(buffers.hidden, self.norm), self.up).chunk(2, -1)
            _add_product(buffers.hidden, F.silu(gate) * up, self.down)

        return run


def _normed(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _product(x: Tensor, linear: tuple[Tensor, Tensor | None]) -> Tensor:
    weight, bias = linear
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def _add_product(hidden: Tensor, x: Tensor, linear: tuple[Tensor, Tensor | None]) -> None:
    """hidden += x @ weight (+ bias), in the buffer itself."""
    weight, bias = linear
    hidden.addmm_(x, weight)
    if bias is not None:
        hidden.add_(bias)
