"""Arithmetic of Llama's layer that the engines share.

Letters of shapes: R rows, H query heads, KV key heads, G = H / KV, d size of a head, F size of the
MLP.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Norm = Callable[[Tensor], Tensor]  # over the last dimension


def fold(query: Tensor, kv: int) -> Tensor:
    """[R, H, d] -> [1, KV, G * R, d]: query heads that share a key head, as rows of one product."""
    rows, heads, d = query.shape
    grouped = query.view(rows, kv, heads // kv, d).permute(1, 2, 0, 3)
    return grouped.reshape(1, kv, heads // kv * rows, d)


def unfold(out: Tensor, rows: int) -> Tensor:
    """[1, KV, G * R, d] or [KV, G * R, d] -> [R, H * d]"""
    kv, _, d = out.shape[-3:]
    return out.view(kv, -1, rows, d).permute(2, 0, 1, 3).reshape(rows, -1)


def rotated(qkv: Tensor, kv: int, norms: Sequence[Norm] | None, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries and keys [R, H + KV, d] of `qkv` [R, H + 2 KV, d], normed by `norms`, at their
    positions; cosine and sine as `RotaryCache.rope`.
    """
    qk = qkv[:, :-kv]
    if norms is not None:
        query, key = norms
        qk = torch.cat((query(qk[:, :-kv]), key(qk[:, -kv:])), 1)
    return torch.addcmul(qk * cos, torch.roll(qk, qk.shape[2] // 2, -1), sin)


def silu_times(gate_up: Tensor) -> Tensor:
    """Gate and input [R, 2 F] -> silu(gate) * input [R, F]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up
