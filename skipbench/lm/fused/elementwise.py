"""Norms, rotations and attention on a CPU in one call each: `elementwise.c` and `attention.c` in
bfloat16 with AVX-512, with the most likely tokens (`top_k.c`), else `elementwise_avx2.c`; torch's
calls where there is no kernel.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.fused.few_rows import MOST_WITH_TILES, few_rows_kernel
from skipbench.lm.fused.native import AVX2, library
from skipbench.lm.metadata import AttentionMetadata

Norm = Callable[[Tensor], Tensor]
Attention = Callable[[Tensor, AttentionMetadata], Tensor]
Rotation = Callable[[Tensor, Tensor, Tensor, int], Tensor]

POINTER, FLOAT, LONG = ctypes.c_void_p, ctypes.c_float, ctypes.c_long
MOST_KEYS = 1 << 16  # cache rows up to which attention is ours: it packs a head's keys and values
MOST_WITH_AVX512, MOST_WITH_AVX2 = 8, 16  # rows above which torch's attention is faster than ours


def kernel_of(like: Tensor) -> str | None:
    """The kernel of this module's functions on activations like these, as `few_rows_kernel`; `None`
    where torch's calls are used.
    """
    return few_rows_kernel(like.dtype)[0] if like.device.type == "cpu" else None


@functools.cache
def _function(dtype: torch.dtype, name: str, *arguments: Any) -> Any:
    """A C function without a result, by the types of its arguments."""
    function = _symbol(dtype, name)
    function.argtypes, function.restype = arguments, None
    return function


def _symbol(dtype: torch.dtype, name: str) -> Any:
    if few_rows_kernel(dtype)[0] == "avx2":
        return getattr(library(AVX2), f"{name}_{str(dtype).removeprefix('torch.')}")
    return getattr(library(), name)


def address_of(dtype: torch.dtype, name: str) -> int | None:
    """Of the C function of that name for a dtype, for calls from C."""
    return ctypes.cast(_symbol(dtype, name), POINTER).value


def attention_of(like: Tensor) -> str:
    """Name of the C function of attention on activations like these."""
    return "attend_vectors" if kernel_of(like) == "avx512" else "attend_rows"


def attends(metadata: AttentionMetadata, like: Tensor, strict: bool) -> bool:
    """True where our attention takes these rows: a verification that is strict, one row, or few
    enough, behind a prompt or in tiles.
    """
    rows = metadata.rows
    alone = rows == 1 or (strict and metadata.token_rows.verifies)
    few = rows <= most_attended(like) and (metadata.start > 0 or kernel_of(like) == "amx")
    return metadata.end <= MOST_KEYS and (alone or few)


def most_attended(like: Tensor) -> int:
    """Rows up to which our attention is faster than torch's."""
    most = {"amx": MOST_WITH_TILES, "avx2": MOST_WITH_AVX2}
    return most.get(kernel_of(like) or "", MOST_WITH_AVX512)


def native_norm(weight: Tensor, eps: float) -> Norm | None:
    """RMS norm `x [T, D] -> [T, D]`; `None`, here and below, where there is none of our own."""
    if kernel_of(weight) is None:
        return None
    types, weight = (*[POINTER] * 3, FLOAT, LONG, LONG), weight.contiguous()
    function = _function(weight.dtype, "rms_norm", *types)
    at, width = weight.data_ptr(), weight.shape[0]

    def norm(x: Tensor, weight: Tensor = weight) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        function(y.data_ptr(), x.data_ptr(), at, eps, x.shape[0], width)
        return y

    return norm


def native_silu(like: Tensor) -> Norm | None:
    """`gate and up [T, 2 F] -> silu(gate) * up [T, F]`."""
    if kernel_of(like) is None:
        return None
    function = _function(like.dtype, "silu_times", POINTER, POINTER, LONG, LONG)

    def silu_times(gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        y = gate_up.new_empty((rows, width))
        function(y.data_ptr(), gate_up.data_ptr(), rows, width)
        return y

    return silu_times


def native_rotation(cache: KVCache, layer: int, like: Tensor) -> Rotation | None:
    """`qkv [T, H + 2 KV, d], cos [T, 1, d], sin, start -> queries [T, H, d]`, all rotated; keys and
    values go to the rows `start ..` of a layer's cache.
    """
    if kernel_of(like) is None:
        return None
    function = _function(like.dtype, "rotate", *[POINTER] * 5, *[LONG] * 4)
    kv, d = cache.kv_heads, cache.head_dim
    row_bytes = 2 * kv * d * like.element_size()

    def rotate(qkv: Tensor, cos: Tensor, sin: Tensor, start: int) -> Tensor:
        rows, heads = qkv.shape[0], qkv.shape[1] - 2 * kv
        query = qkv.new_empty((rows, heads, d))
        at = cache.rows[layer].data_ptr() + start * row_bytes
        angles = cos.data_ptr(), sin.data_ptr()
        function(query.data_ptr(), at, qkv.data_ptr(), *angles, rows, heads, kv, d)
        return query

    return rotate


def native_attention(cache: KVCache, layer: int, scale: float, like: Tensor) -> Attention | None:
    """`query [T, H, d], metadata -> [T, H * d]` over a cache, in no window but a draft's. A row has
    the bits that it has alone.
    """
    if kernel_of(like) is None or cache.head_dim % 8:
        return None
    types, kv, d = (*[POINTER] * 4, FLOAT, *[LONG] * 7), cache.kv_heads, cache.head_dim
    function = _function(like.dtype, attention_of(like), *types)

    def attend(query: Tensor, metadata: AttentionMetadata) -> Tensor:
        query, parents = query.contiguous(), metadata.parents
        rows, heads, _ = query.shape
        out, of_layer = query.new_empty((rows, heads * d)), cache.rows[layer].data_ptr()
        if metadata.draft_window:  # rows see different ones, each by itself
            for row in range(rows):
                hidden = metadata.hidden_from(row)
                at = out[row].data_ptr(), query[row].data_ptr(), of_layer
                seen_rows = metadata.start + row - hidden
                function(*at, None, scale, 1, seen_rows, seen_rows, heads, kv, d, hidden)
            return out
        at = out.data_ptr(), query.data_ptr(), of_layer
        seen = None if parents is None else parents.data_ptr()
        committed = metadata.token_rows.context_len
        function(*at, seen, scale, rows, committed, metadata.start, heads, kv, d, 0)
        return out

    return attend


def native_two_best(logits: Tensor) -> list[tuple[float, float, float]] | None:
    """Per row of [T, V], V > 1, the index of the largest, it, and the next one."""
    if kernel_of(logits) not in ("amx", "avx512"):
        return None
    logits = logits.contiguous()
    rows, vocabulary = logits.shape
    found = (ctypes.c_float * (3 * rows))()
    function = _function(logits.dtype, "two_best", POINTER, POINTER, LONG, LONG)
    function(found, logits.data_ptr(), rows, vocabulary)
    values = iter(found)
    return list(zip(values, values, values, strict=True))


def native_top_k(logits: Tensor, k: int) -> list[list[int]] | None:
    """Indices of the `k` largest per row of [T, V], the largest first, of equal ones the first;
    before them that of the largest, or -1 where it is not finite or the row has a NaN.
    """
    if kernel_of(logits) not in ("amx", "avx512"):
        return None
    logits = logits.contiguous()
    (rows, vocabulary), width = logits.shape, k + 1
    index = (ctypes.c_int32 * (rows * width))()
    top_k = _function(logits.dtype, "top_k", POINTER, POINTER, LONG, LONG, LONG)
    top_k(index, logits.data_ptr(), rows, vocabulary, k)
    return [index[at : at + width] for at in range(0, rows * width, width)]
