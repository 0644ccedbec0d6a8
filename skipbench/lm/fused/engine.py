"""`engine=fused`: the same arithmetic from the same weights, in fewer and larger calls.

Queries, keys and values come from one product, gate and up from one, the residual sum is part of
the output products, and attention reads a slice of the preallocated cache. The Hugging Face modules
keep working: their weights become views of the fused ones, so that nothing is stored twice.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.attention import fold, unfold
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import Engine, Sublayer
from skipbench.lm.families import HEAD, parts_of
from skipbench.lm.fused.bit_exact import MOST, NotStrictError, rows_one_by_one
from skipbench.lm.fused.elementwise import (
    MOST_KEYS,
    most_attended,
    native_attention,
    native_norm,
    native_rotation,
    native_silu,
)
from skipbench.lm.fused.weights import Weights, pass_bytes
from skipbench.lm.layer import AttentionParts, Family, MlpParts
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.reference import reference_instead


def make_engine(
    model: Any, family: Family, cache: KVCache, *, strict: bool, spare_mib: int
) -> Engine:
    """As `MakeEngine`; the reference engine where the layer is not Llama's."""
    if (other := reference_instead(model, family, cache, "fused")) is not None:
        if strict:
            raise NotStrictError(
                f"engine.strict=true cannot be kept: {other.notes()[0]}; use engine.strict=false"
            )
        return other
    return FusedEngine(model, family, cache, spare_mib, strict)


class FusedEngine:
    """Sub-layers of families whose layers are Llama's."""

    name = "fused"
    result_is_borrowed = False

    def __init__(
        self, model: Any, family: Family, cache: KVCache, spare_mib: int, strict: bool = False
    ) -> None:
        """
        Args:
            spare_mib: memory that second layouts of weights may take, MiB.
            strict: verified rows pass attention with the bits of one, and products `MOST` at once.
        """
        weights, parts = Weights(spare_mib, pass_bytes(model)), parts_of(model)
        self._most = MOST if strict else None
        self.sublayers: list[Sublayer] = []
        for index, (attention, mlp) in enumerate(parts.layers):
            window = family.window(model.config, index)
            self.sublayers.append(
                _attention(attention, index, window, family, model.config, cache, weights, strict)
            )
            self.sublayers.append(_mlp(mlp, family, model.config, weights, strict))
        self._final_norm, self._embedding = _Norm(parts.norm), parts.embedding.weight
        tied = parts.head.weight.data_ptr() == self._embedding.data_ptr()
        self._head = weights.fuse(model, HEAD, 1, keep=tied)
        self.kernels, self._notes = weights.kernels, weights.notes(self._embedding)

    def notes(self) -> list[str]:
        return self._notes

    def add_note(self, note: str) -> None:
        self._notes = [*self._notes, note]

    def whole_pass(self, hidden: Tensor, metadata: AttentionMetadata) -> None:
        """Sub-layers run one by one."""

    def allocated(self, rotary: dict[torch.device, RotaryCache]) -> "FusedEngine":
        return self

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self._embedding)

    def head(self, hidden: Tensor) -> Tensor:
        return self._head(self._final_norm(hidden), self._most)


class _Norm:
    """RMS norm; on a CPU in fewer or cheaper calls than torch's, and one row of float32 gets its
    scale through Python.
    """

    def __init__(self, module: Any) -> None:
        self.weight, self.eps = module.weight.data, module.variance_epsilon
        self.shape = tuple(self.weight.shape)
        self.on_cpu, self.scalar = (
            self.weight.device.type == "cpu",
            self.weight.dtype == torch.float32,
        )
        self.wide = self.weight.float()
        self.zero = torch.zeros(1)
        self.room = torch.full((1, 1), self.eps)
        self.native = native_norm(self.weight, self.eps)

    def __call__(self, hidden: Tensor) -> Tensor:
        if self.native is not None:
            return self.native(hidden)
        if not self.on_cpu:
            return F.rms_norm(hidden, self.shape, self.weight, self.eps)
        if self.scalar and hidden.shape[0] == 1:
            row = hidden.view(-1)
            mean_square = float(torch.dot(row, row)) / self.shape[0]
            return torch.addcmul(
                self.zero, hidden, self.weight, value=1.0 / math.sqrt(mean_square + self.eps)
            )
        wide = hidden.float()  # float32 is not copied
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self.room, norm, norm, value=1.0 / self.shape[0]).rsqrt_()
        if self.scalar:
            return torch.mul(hidden, self.weight).mul_(scale)
        return wide.mul_(scale).mul_(self.wide).to(hidden.dtype)


def _rope_cos_sin(metadata: AttentionMetadata) -> tuple[Tensor, Tensor]:
    """Cosine and sine [T, 1, d] of a metadata's rows, made once per pass; the sine carries the sign
    of `rotate_half`.
    """
    if metadata.rope_cos_sin is None and metadata.whole is not None:
        cos, sin = _rope_cos_sin(metadata.whole)
        metadata.rope_cos_sin = cos[: metadata.rows], sin[: metadata.rows]
    elif metadata.rope_cos_sin is None:
        tables, index = metadata.tables, metadata.index
        if tables.rope_cos_sin is None:
            half = tables.sin.shape[1] // 2
            sin = torch.cat((-tables.sin[:, :half], tables.sin[:, half:]), -1)
            tables.rope_cos_sin = tables.cos[:, None].contiguous(), sin[:, None]
        cos, sin = tables.rope_cos_sin
        metadata.rope_cos_sin = (
            (cos[index], sin[index])
            if isinstance(index, slice)
            else (cos.index_select(0, index), sin.index_select(0, index))
        )
    return metadata.rope_cos_sin


def _attention(
    parts: AttentionParts,
    index: int,
    window: int | None,
    family: Family,
    config: Any,
    cache: KVCache,
    weights: Weights,
    strict: bool,
) -> Sublayer:
    d, kv, heads = parts.head_dim, config.num_key_value_heads, config.num_attention_heads
    rotated, half, scale = heads + kv, d // 2, parts.scale
    norm = _Norm(parts.norm)
    qkv_of = weights.fuse(parts.module, family.qkv, config.num_hidden_layers)
    out_of = weights.fuse(parts.module, (family.output,), config.num_hidden_layers)
    q_norm, k_norm = parts.qk_norms or (None, None)
    group = heads // kv
    rotate = None if q_norm is not None else native_rotation(cache, index, norm.weight)
    attend_few = native_attention(cache, index, scale, norm.weight)
    most_rows = most_attended() if attend_few is not None else 1

    def attend(query: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Queries [T, heads, d] over the cache up to the metadata's end -> [T, heads * d]."""
        t, end = metadata.rows, metadata.end
        alone = t == 1 or (strict and metadata.token_rows.verifies)
        if (
            attend_few is not None
            and (alone or (t <= most_rows and metadata.start > 0))
            and end <= MOST_KEYS
            and metadata.within(window)
        ):
            return attend_few(query, metadata)
        if t > 1 and alone:
            each = rows_one_by_one(metadata, cache.rows[index])
            return torch.cat([attend(query[step.row : step.row + 1], step.alone) for step in each])
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
        # a square chain from row 0
        if group > 1 and query.is_cuda and query.dtype == torch.float32:
            # Of the kernels of a GPU only flash takes grouped heads, and it takes no float32: the
            # key heads become the batch, and each is seen by its group without a copy.
            grouped = query.view(t, kv, group, d).permute(1, 2, 0, 3)
            keys, values = (x[0][:, None].expand(-1, group, -1, -1) for x in (keys, values))
            out = F.scaled_dot_product_attention(grouped, keys, values, is_causal=True, scale=scale)
            return out.permute(2, 0, 1, 3).reshape(t, heads * d)
        query = query.transpose(0, 1)[None]
        out = F.scaled_dot_product_attention(
            query, keys, values, is_causal=True, scale=scale, enable_gqa=group > 1
        )
        return out[0].transpose(0, 1).reshape(t, heads * d)

    def rotated_and_stored(
        qkv: Tensor, cos: Tensor, sin: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """Queries [T, heads, d]; keys and values go to the cache."""
        if rotate is not None:
            return rotate(qkv, cos, sin, metadata.start)
        rotated_qk = qkv[:, :rotated]
        if q_norm is not None and k_norm is not None:
            normed = (
                F.rms_norm(rotated_qk[:, :heads], (d,), q_norm.weight, q_norm.variance_epsilon),
                F.rms_norm(rotated_qk[:, heads:], (d,), k_norm.weight, k_norm.variance_epsilon),
            )
            rotated_qk = torch.cat(normed, 1)
        rotated_qk = torch.addcmul(rotated_qk * cos, torch.roll(rotated_qk, half, -1), sin)
        rows = cache.rows[index][metadata.start : metadata.end]
        rows[:, :kv] = rotated_qk[:, heads:]
        rows[:, kv:] = qkv[:, rotated:]
        return rotated_qk[:, :heads]

    def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
        t = metadata.rows
        most = MOST if strict and metadata.token_rows.verifies else None
        cos, sin = _rope_cos_sin(metadata)
        qkv = qkv_of(norm(hidden), most).view(t, heads + 2 * kv, d)
        out = attend(rotated_and_stored(qkv, cos, sin, metadata), metadata)
        return out_of.added(hidden, out, most)

    return run


def _silu_times(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def _mlp(parts: MlpParts, family: Family, config: Any, weights: Weights, strict: bool) -> Sublayer:
    norm = _Norm(parts.norm)
    up_of = weights.fuse(parts.module, family.gate_up, config.num_hidden_layers)
    down_of = weights.fuse(parts.module, (family.down,), config.num_hidden_layers)
    inner = native_silu(norm.weight) or _silu_times

    def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
        most = MOST if strict and metadata.token_rows.verifies else None
        return down_of.added(hidden, inner(up_of(norm(hidden), most)), most)

    return run
