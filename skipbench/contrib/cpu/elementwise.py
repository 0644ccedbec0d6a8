"""Norms, rotations and attention on a CPU in one call each (`elementwise.c`, `attention.c`, or with
AMX `attention_amx.c`). Functions are `None` where there is no kernel.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skipbench.contrib.cpu.few_rows import MOST_WITH_TILES, few_rows_kernel
from skipbench.contrib.cpu.native import function
from skipbench.lm.cache import KVCache
from skipbench.lm.metadata import AttentionMetadata

Norm = Callable[[Tensor], Tensor]
Attention = Callable[[Tensor, AttentionMetadata], Tensor]
Rotation = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]

MOST_KEYS = 1 << 16  # cache rows up to which attention is ours: it packs a head's keys and values
MOST_ATTENDED = {"amx": MOST_WITH_TILES, "avx512": 8, "avx2": 16}
"""Rows above which torch's attention is faster than ours."""


def supports_window(metadata: AttentionMetadata, window: int | None) -> bool:
    """True if our kernels attend so: no window hides a position."""
    return window is None or max(metadata.token_rows.positions) < window


def kernel_of(like: Tensor) -> str | None:
    """The kernel of this module's functions on activations like these, as `few_rows_kernel`; `None`
    where torch's calls are used.
    """
    return few_rows_kernel(like.dtype)[0] if like.device.type == "cpu" else None


def function_of(like: Tensor, name: str) -> Any:
    """The C function of `native.ARGUMENTS` on activations like these, or `None`."""
    kernel = kernel_of(like)
    return None if kernel is None else function(name, like.dtype, kernel)


def attends(metadata: AttentionMetadata, like: Tensor, strict: bool) -> bool:
    """True where our attention takes these rows: a verification that is strict, one row, or few
    enough, behind a prompt or in tiles.
    """
    rows = metadata.rows
    alone = rows == 1 or (strict and metadata.token_rows.verifies)
    kernel = kernel_of(like) or ""
    most = MOST_ATTENDED.get(kernel, 0)
    few = rows <= most and (metadata.start > 0 or kernel == "amx")
    return metadata.end <= MOST_KEYS and (alone or few)


def native_norm(weight: Tensor, eps: float) -> Norm | None:
    """RMS norm `x [T, D] -> [T, D]`; `None`, here and below, where there is none of our own."""
    if (rms_norm := function_of(weight, "rms_norm")) is None:
        return None
    weight = weight.contiguous()
    at, width = weight.data_ptr(), weight.shape[0]

    def norm(x: Tensor, weight: Tensor = weight) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rms_norm(y.data_ptr(), x.data_ptr(), at, eps, x.shape[0], width)
        return y

    return norm


def native_silu(like: Tensor) -> Norm | None:
    """`gate and up [T, 2 F] -> silu(gate) * up [T, F]`."""
    if (of_c := function_of(like, "silu_times")) is None:
        return None

    def silu_times(gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        y = gate_up.new_empty((rows, width))
        of_c(y.data_ptr(), gate_up.data_ptr(), rows, width)
        return y

    return silu_times


def native_rotation(cache: KVCache, like: Tensor) -> Rotation | None:
    """`qkv [T, H + 2 KV, d], cos [T, 1, d], sin, rows, start -> queries [T, H, d]`, all rotated;
    keys and values go to the `rows` of a layer of such a cache, from `start` on.
    """
    if (of_c := function_of(like, "rotate")) is None:
        return None
    kv, d = cache.kv_heads, cache.head_dim
    row_bytes = 2 * kv * d * like.element_size()

    def rotate(qkv: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, start: int) -> Tensor:
        count, heads = qkv.shape[0], qkv.shape[1] - 2 * kv
        query = qkv.new_empty((count, heads, d))
        at = rows.data_ptr() + start * row_bytes
        angles = cos.data_ptr(), sin.data_ptr()
        of_c(query.data_ptr(), at, qkv.data_ptr(), *angles, count, heads, kv, d)
        return query

    return rotate


def native_attention(cache: KVCache, layer: int, scale: float, like: Tensor) -> Attention | None:
    """`query [T, H, d], metadata -> [T, H * d]` over a cache; a row has the bits it has alone."""
    kv, d = cache.kv_heads, cache.head_dim
    if (of_c := function_of(like, "attend")) is None or d % 8:
        return None

    def attend(query: Tensor, metadata: AttentionMetadata) -> Tensor:
        query, parents = query.contiguous(), metadata.parents
        rows, heads, _ = query.shape
        of_layer = cache.rows[layer].data_ptr()
        out = query.new_empty((rows, heads * d))
        at = out.data_ptr(), query.data_ptr(), of_layer
        seen = None if parents is None else parents.data_ptr()
        committed = metadata.token_rows.context_len
        of_c(*at, seen, scale, rows, committed, metadata.start, heads, kv, d)
        return out

    return attend
