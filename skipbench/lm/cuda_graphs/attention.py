"""Backends of attention of a few rows over a bucket of the cache: the first that works is taken.

Each of `BACKENDS` is `query [R, H, d], bucket [B, 2 KV, d], buffers, mask [G * R, B], scale ->
[R, H * d]`, and takes the length from the buffers.
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
    """One call over the whole bucket."""
    keys, values = (part.transpose(0, 1)[None] for part in bucket.chunk(2, 1))
    folded = fold(query, keys.shape[1])
    out = F.scaled_dot_product_attention(folded, keys, values, mask[None, None], scale=scale)
    return unfold(out, buffers.rows)


def split_kv(
    query: Tensor, bucket: Tensor, buffers: GraphBuffers, mask: Tensor, scale: float
) -> Tensor:
    """The bucket in parts side by side, put together by their sums of exponentials: few heads still
    fill a whole device.
    """
    size = next(p for p in PARTS if len(bucket) % p == 0)
    parts = bucket.view(-1, size, *bucket.shape[1:]).chunk(2, 2)  # [parts, size, KV, d]
    keys, values = (part.transpose(1, 2) for part in parts)
    folded = fold(query, keys.shape[1]).expand(len(keys), -1, -1, -1)
    bias = mask.view(-1, len(keys), size).transpose(0, 1)[:, None]
    bias = bias.expand(-1, folded.shape[1], -1, -1)
    # private operators of torch: outputs [parts, KV, M, d], logarithms of the sums [parts, KV, M]
    if query.device.type == "cuda":
        out, log_sum, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            folded, keys, values, bias, True, scale=scale
        )
    else:
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            folded, keys, values, attn_mask=bias, scale=scale
        )
    shares = log_sum[..., : folded.shape[2]].float().softmax(0)[..., None]
    return unfold((out.float() * shares).sum(0).to(query.dtype), buffers.rows)


BACKENDS: dict[str, AttentionBackend] = {"masked": masked, "split_kv": split_kv}
