"""The two sub-layers of `engine=fused`, from fused weights and the kernels that run here."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.draft_plan import SINKS
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import Sublayer
from skipbench.lm.fused import elementwise
from skipbench.lm.fused.bit_exact import MOST, rows_one_by_one
from skipbench.lm.fused.weights import LayerWeights, W
from skipbench.lm.layer import AttentionParts, MlpParts
from skipbench.lm.llama import fold, rotated, silu_times, unfold
from skipbench.lm.metadata import AttentionMetadata


def rms_norm(module: Any) -> elementwise.Norm:
    """The fastest RMS norm `[T, D] -> [T, D]` by a module's weight on its device."""
    weight, eps = module.weight.data, module.variance_epsilon
    if (native := elementwise.native_norm(weight, eps)) is not None:
        return native
    if weight.device.type != "cpu":
        shape = tuple(weight.shape)
        return lambda hidden: F.rms_norm(hidden, shape, weight, eps)
    width, zero, eps_row = weight.shape[0], torch.zeros(1), torch.full((1, 1), eps)

    def float32(hidden: Tensor) -> Tensor:
        if hidden.shape[0] == 1:  # the scale goes through Python
            row = hidden.view(-1)
            scale = 1.0 / math.sqrt(float(torch.dot(row, row)) / width + eps)
            return torch.addcmul(zero, hidden, weight, value=scale)
        norm = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        scales = torch.addcmul(eps_row, norm, norm, value=1.0 / width).rsqrt_()
        return torch.mul(hidden, weight).mul_(scales)

    wide_weight = weight.float()

    def low_precision(hidden: Tensor) -> Tensor:
        wide = hidden.float()
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scales = torch.addcmul(eps_row, norm, norm, value=1.0 / width).rsqrt_()
        return wide.mul_(scales).mul_(wide_weight).to(hidden.dtype)

    return float32 if weight.dtype == torch.float32 else low_precision


def _square_attention(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """A chain from row 0 over itself: queries [T, heads, d], keys and values [1, KV, T, d] ->
    [T, heads * d].
    """
    (t, heads, d), kv = query.shape, keys.shape[1]
    group = heads // kv
    gqa = group > 1
    if gqa and query.is_cuda and query.dtype == torch.float32:
        # Of the kernels of a GPU only flash takes grouped heads, and it takes no float32: the
        # key heads become the batch, and each is seen by its group without a copy.
        query, gqa = query.view(t, kv, group, d).permute(1, 2, 0, 3), False
        keys, values = (x[0][:, None].expand(-1, group, -1, -1) for x in (keys, values))
    else:
        query = query.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(
        query, keys, values, is_causal=True, scale=scale, enable_gqa=gqa
    )
    return out.permute(2, 0, 1, 3).reshape(t, heads * d)


def attention(
    parts: AttentionParts,
    weights: LayerWeights[W],
    index: int,
    cache: KVCache,
    strict: bool,
    padded: int,
) -> Sublayer:
    kv, d, scale, window = cache.kv_heads, cache.head_dim, parts.scale, parts.window
    heads = weights.output.inputs // d
    group, like, norm = heads // kv, parts.norm.weight, rms_norm(parts.norm)
    attend_few = elementwise.native_attention(cache, index, scale, like)

    def attend(query: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Queries [T, heads, d] over the cache up to the metadata's end -> [T, heads * d]."""
        t, end, rows = metadata.rows, metadata.end, metadata.token_rows
        if padded and rows.verifies and not (t == padded and rows.contiguous_chain):
            each = rows_one_by_one(metadata, cache.rows[index], padded)
            out = query.new_zeros(t, heads * d)
            for step in each:
                row = F.pad(query[step.row : step.row + 1], (0, 0, 0, 0, 0, padded - 1))
                out[step.row] = attend(row, step.alone)[0]
            return out
        alone = t == 1 or (strict and not padded and rows.verifies)
        few = elementwise.attends(metadata, like, strict and not padded)
        if attend_few is not None and few and metadata.native(window):
            return attend_few(query, metadata)
        if t > 1 and alone:
            each = rows_one_by_one(metadata, cache.rows[index])
            return torch.cat([attend(query[step.row : step.row + 1], step.alone) for step in each])
        if t == 1 and metadata.draft_window and window is None and rows.contiguous_chain:
            # a copy of the few rows that are seen: kernels want them in one piece
            every, mask = cache.rows[index], None
            seen = torch.cat((every[:SINKS], every[end - metadata.draft_window : end]))
            keys, values = (part.transpose(0, 1)[None] for part in torch.split(seen, kv, 1))
        else:
            mask = metadata.mask(window, group)
            keys, values = (of[index].narrow(2, 0, end) for of in (cache.keys, cache.values))
        # The queries of a group are rows of one product over their shared keys: kernels that take a
        # mask want no groups.
        if mask is not None:
            out = F.scaled_dot_product_attention(fold(query, kv), keys, values, mask, scale=scale)
            return unfold(out, t)
        if t == 1:
            query = query.view(1, kv, group, d)
            out = F.scaled_dot_product_attention(query, keys, values, scale=scale)
            return out.reshape(1, heads * d)  # some kernels of a GPU lay rows outside heads
        return _square_attention(query, keys, values, scale)

    def rotated_and_stored(qkv: Tensor, cos: Tensor, sin: Tensor, start: int) -> Tensor:
        """Queries [T, heads, d]; keys and values go to the cache rows `start ..`."""
        rotated_qk = rotated(qkv, kv, parts.qk_norms, cos, sin)
        rows = cache.rows[index][start : start + qkv.shape[0]]
        rows[:, :kv] = rotated_qk[:, heads:]
        rows[:, kv:] = qkv[:, heads + kv :]
        return rotated_qk[:, :heads]

    native = None if parts.qk_norms is not None else elementwise.native_rotation(cache, index, like)
    store = native or rotated_and_stored

    def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
        t = metadata.rows
        most = MOST if strict and metadata.token_rows.verifies else None
        cos, sin = metadata.rope
        qkv = weights.qkv(norm(hidden), most).view(t, heads + 2 * kv, d)
        out = attend(store(qkv, cos, sin, metadata.start), metadata)
        return weights.output.added(hidden, out, most)

    return run


def mlp(parts: MlpParts, weights: LayerWeights[W], strict: bool) -> Sublayer:
    norm = rms_norm(parts.norm)
    inner = elementwise.native_silu(parts.norm.weight) or silu_times

    def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
        most = MOST if strict and metadata.token_rows.verifies else None
        gate_up = weights.gate_up(norm(hidden), most)
        return weights.down.added(hidden, inner(gate_up), most)

    return run
