"""Norms, rotations and attention of a bfloat16 model on a CPU in one call each (`elementwise.c`,
`attention.c`), where `few_rows` runs; elsewhere they are torch's calls.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.fused.few_rows import MOST_ROWS, few_rows_kernel
from skipbench.lm.fused.native import library
from skipbench.lm.metadata import AttentionMetadata

Norm = Callable[[Tensor], Tensor]
Attention = Callable[[Tensor, AttentionMetadata], Tensor]
Rotation = Callable[[Tensor, Tensor, Tensor, int], Tensor]

MOST_KEYS = 1 << 16
"""Cache rows up to which attention is ours: the keys and values of one head are packed in memory of
its own.
"""
MOST_WITHOUT_AMX = 8
"""Rows from which on torch's attention is faster than ours without AMX."""


def is_native(like: Tensor) -> bool:
    """Whether weights like this one pass through our own C functions."""
    where = like.device.type == "cpu" and like.dtype == torch.bfloat16
    return where and few_rows_kernel()[0] is not None


def most_attended() -> int:
    """Rows up to which our attention is faster than torch's."""
    return MOST_ROWS if few_rows_kernel()[0] == "amx" else MOST_WITHOUT_AMX


def native_norm(weight: Tensor, eps: float) -> Norm | None:
    """RMS norm `x [T, D] -> [T, D]`; `None` where there is none of our own."""
    if not is_native(weight):
        return None
    function, weight = library().rms_norm, weight.contiguous()
    at, width = weight.data_ptr(), weight.shape[0]
    function.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_float, *[ctypes.c_long] * 2]
    function.restype = None

    def norm(x: Tensor, weight: Tensor = weight) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        function(y.data_ptr(), x.data_ptr(), at, eps, x.shape[0], width)
        return y

    return norm


def native_silu(like: Tensor) -> Norm | None:
    """`gate and up [T, 2 F] -> silu(gate) * up [T, F]`; `None` where there is none of our own."""
    if not is_native(like):
        return None
    function = library().silu_times
    function.argtypes, function.restype = [*[ctypes.c_void_p] * 2, *[ctypes.c_long] * 2], None

    def silu_times(gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        y = gate_up.new_empty((rows, width))
        function(y.data_ptr(), gate_up.data_ptr(), rows, width)
        return y

    return silu_times


def native_rotation(cache: KVCache, layer: int, like: Tensor) -> Rotation | None:
    """`qkv [T, H + 2 KV, d], cos [T, 1, d], sin, start -> queries [T, H, d]`, all rotated; keys and
    values go to the rows `start ..` of a layer's cache. `None` where there is none of our own.
    """
    if not is_native(like):
        return None
    function, kv, d = library().rotate, cache.kv_heads, cache.head_dim
    function.argtypes, function.restype = [*[ctypes.c_void_p] * 5, *[ctypes.c_long] * 4], None
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
    """`query [T, H, d], metadata -> [T, H * d]` over a cache, without windows. A row has the
    bits that it has alone. `None` where there is none of our own.
    """
    if not is_native(like) or cache.head_dim % 8:
        return None
    function, kv, d = library().attend_rows, cache.kv_heads, cache.head_dim
    function.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_float, *[ctypes.c_long] * 6, ctypes.c_int]
    function.restype = None
    tiles = few_rows_kernel()[0] == "amx"

    def attend(query: Tensor, metadata: AttentionMetadata) -> Tensor:
        query, parents = query.contiguous(), metadata.parents
        rows, heads, _ = query.shape
        out = query.new_empty((rows, heads * d))
        at = out.data_ptr(), query.data_ptr(), cache.rows[layer].data_ptr()
        seen = None if parents is None else parents.data_ptr()
        committed = metadata.token_rows.context_len
        function(*at, seen, scale, rows, committed, metadata.start, heads, kv, d, tiles)
        return out

    return attend
