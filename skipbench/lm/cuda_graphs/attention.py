"""Attention of a few rows over a bucket of the cache, in three backends; the fastest on the device
is taken.

Each is `query [R, H, d], bucket [B, 2 KV, d], buffers, mask [G * R, B], scale -> [R, H * d]`, and
takes the length from the buffers.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.llama import fold, unfold

AttentionBackend = Callable[[Tensor, Tensor, GraphBuffers, Tensor, float], Tensor]
PARTS = (256, 128, 64)  # cache rows of a part


def masked(
    query: Tensor, bucket: Tensor, buffers: GraphBuffers, mask: Tensor, scale: float
) -> Tensor:
    """One call over the whole bucket.

    The queries that share a key head are rows of one product: nothing is repeated.
    """
    keys, values = bucket.chunk(2, 1)
    out = F.scaled_dot_product_attention(
        fold(query, keys.shape[1]), keys.transpose(0, 1)[None], values.transpose(0, 1)[None],
        mask[None, None], scale=scale,
    )  # fmt: skip
    return unfold(out, buffers.rows)


def split_kv(
    query: Tensor, bucket: Tensor, buffers: GraphBuffers, mask: Tensor, scale: float
) -> Tensor:
    """The bucket in parts side by side, put together by their sums of exponentials: few heads still
    fill a whole device.
    """
    size = next(p for p in PARTS if len(bucket) % p == 0)
    keys, values = bucket.view(-1, size, *bucket.shape[1:]).chunk(2, 2)  # [parts, size, KV, d]
    folded = fold(query, keys.shape[2]).expand(len(keys), -1, -1, -1)
    bias = mask.view(-1, len(keys), size).transpose(0, 1)[:, None]
    bias = bias.expand(-1, folded.shape[1], -1, -1)
    out, log_sum = _with_log_sum(folded, keys.transpose(1, 2), values.transpose(1, 2), bias, scale)
    whole = (out.float() * log_sum.float().softmax(0)[..., None]).sum(0)
    return unfold(whole.to(query.dtype), buffers.rows)


def varlen(
    query: Tensor, bucket: Tensor, buffers: GraphBuffers, mask: Tensor, scale: float
) -> Tensor:
    """Flash attention with the length on the device; contiguous chains without a window, half
    precision, CUDA.
    """
    from torch.nn.attention.varlen import varlen_attn

    keys, values = bucket.chunk(2, 1)
    out = varlen_attn(
        query, keys, values, buffers.ends, buffers.whole[len(bucket)], buffers.rows, len(bucket),
        scale=scale, window_size=(-1, 0), enable_gqa=True, seqused_k=buffers.used,
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out.reshape(buffers.rows, -1)


def attention_backends(bucket: int, chain: bool) -> dict[str, AttentionBackend]:
    """The backends to try for a bucket: `masked` always, first."""
    backends: dict[str, AttentionBackend] = {"masked": masked}
    if bucket % PARTS[-1] == 0:
        backends["split_kv"] = split_kv
    if chain:
        backends["varlen"] = varlen
    return backends


def _with_log_sum(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs [parts, KV, M, d] and logarithms of the sums of exponentials [parts, KV, M]; private
    operators of torch.
    """
    if query.device.type == "cuda":
        out, log_sum, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, keys, values, bias, True, scale=scale
        )
    else:
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, attn_mask=bias, scale=scale
        )
    return out, log_sum[..., : query.shape[2]]
