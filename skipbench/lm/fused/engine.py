"""`engine=fused`: the same arithmetic from the same weights, in fewer and larger calls.

Queries, keys and values come from one product, gate and up from one; output products add the
residual. The weights of the Hugging Face modules become views of the fused ones.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.draft_plan import SINKS
from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import Chosen, Engine, Sublayer
from skipbench.lm.families import HEAD, parts_of
from skipbench.lm.fused import elementwise
from skipbench.lm.fused.bit_exact import MOST, padded_rows, rows_one_by_one
from skipbench.lm.fused.few_rows import MOST_ROWS, Product
from skipbench.lm.fused.int8 import NATIVE, Int8Weight, int8_kernel
from skipbench.lm.fused.native_pass import NativePass, native_pass
from skipbench.lm.fused.weights import (
    LayerWeights,
    ParallelWeight,
    W,
    Weight,
    Weights,
    pass_bytes,
)
from skipbench.lm.layer import AttentionParts, Family, MlpParts
from skipbench.lm.llama import fold, rotated, silu_times, unfold
from skipbench.lm.metadata import AttentionMetadata


class FusedEngine(Engine):
    """Sub-layers of families whose layers are Llama's."""

    name = "fused"

    def __init__(
        self, model: Any, family: Family, cache: KVCache, spare_mib: int, strict: bool = False
    ) -> None:
        """
        Args:
            spare_mib: memory that second layouts of weights may take, MiB.
            strict: verified rows pass attention with the bits of one, and products `MOST` at once;
                on a GPU passes run at `MOST` rows.
        """
        weights, parts = Weights(spare_mib, pass_bytes(model)), parts_of(model)
        self.padded_rows = padded_rows(parts.embedding.weight.device) if strict else 0
        if self.padded_rows:
            cache.spare = 2 * MOST  # of a padded pass, and of a padded row behind it
        self._most = MOST if strict else None
        self._cache, self._strict, self._parts = cache, strict, parts.layers
        windows = [attention.window for attention, _ in parts.layers if attention.window]
        self._window = min(windows, default=None)
        self.layers = [
            LayerWeights(
                weights.fuse(attention.module, family.qkv, len(parts.layers)),
                weights.fuse(attention.module, (family.output,), len(parts.layers)),
                weights.fuse(mlp.module, family.gate_up, len(parts.layers)),
                weights.fuse(mlp.module, (family.down,), len(parts.layers)),
            )
            for attention, mlp in parts.layers
        ]
        self.sublayers = self._sublayers(self.layers)
        self._int8: list[Int8Weight] = []
        self.int8_layers: list[LayerWeights[Int8Weight]] = []
        self._int8_sublayers: list[Sublayer] = []
        self._int8_head: Int8Weight | None = None
        self._native = self._native_pass()
        self._likely: tuple[Tensor, Product] | None = None
        self._final_norm, self._embedding = _rms_norm(parts.norm), parts.embedding.weight
        tied = parts.head.weight.data_ptr() == self._embedding.data_ptr()
        self._head = weights.fuse(model, HEAD, 1, keep=tied)
        self.kernels, self._notes = weights.kernels, weights.notes(self._embedding)

    def _sublayers(self, layers: list[LayerWeights[W]]) -> list[Sublayer]:
        made: list[Sublayer] = []
        for index, ((attention, mlp), layer) in enumerate(zip(self._parts, layers, strict=True)):
            how = self._cache, self._strict, self.padded_rows
            made += [_attention(attention, layer, index, *how), _mlp(mlp, layer, self._strict)]
        return made

    def _native_pass(self) -> NativePass | None:
        weights: list[LayerWeights[Any]] = [*self.layers, *self.int8_layers]
        return None if self.padded_rows else native_pass(self._parts, self._cache, weights)

    def at_once(
        self,
        hidden: Tensor,
        metadata: AttentionMetadata,
        chosen: Chosen,
        states: list[Tensor] | None = None,
    ) -> Tensor | None:
        if self._native is None or metadata.rows > self._native.most:
            return None
        attends = elementwise.attends(metadata, hidden, self._strict)
        if not attends or not metadata.native(self._window):
            return None
        return self._native(hidden, metadata, chosen, states)

    def prefill_rows(self, tokens: int) -> int:
        # in halves that tiles multiply; torch is faster with longer prompts
        most, half = self._native.most if self._native else 0, -(-tokens // 2)
        return half if MOST_ROWS < half <= most < tokens else tokens

    def add_note(self, note: str) -> None:
        self._notes = [*self._notes, note]

    def notes(self) -> list[str]:
        if not self._int8:
            return self._notes
        size = f"a copy of weights in 8 bits for drafts takes {self.int8_bytes() >> 20} MiB"
        fault = self._int8[0].fault
        slow = f"; torch multiplies by it, no faster than by the weights ({fault})" if fault else ""
        return [*self._notes, size + slow]

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self._embedding)

    def head(self, hidden: Tensor) -> Tensor:
        rows, missing = len(hidden), -len(hidden) % (self.padded_rows or 1)
        if missing:
            hidden = F.pad(hidden, (0, 0, 0, missing))
        return self._head(self._final_norm(hidden), self._most)[:rows]

    @property
    def fast_int8(self) -> bool:
        like = self._embedding
        plain = like.device.type == "cpu" and not isinstance(self._head, ParallelWeight)
        return plain and like.dtype in NATIVE and int8_kernel()[0] is not None

    def int8_sublayers(self) -> list[Sublayer]:
        if not self._int8_sublayers:
            self.int8_layers = [LayerWeights(*map(self._quantised, w)) for w in self.layers]
            self._int8_sublayers = self._sublayers(self.int8_layers)
            self._native = self._native_pass()
        return self._int8_sublayers

    def int8_head(self, hidden: Tensor) -> Tensor:
        if self._int8_head is None:
            self._int8_head = self._quantised(self._head)
        return self._int8_head(self._final_norm(hidden))

    def int8_bytes(self) -> int:
        return sum(weight.nbytes for weight in self._int8)

    def _quantised(self, weight: Weight) -> Int8Weight:
        if isinstance(weight, ParallelWeight):
            raise SkipbenchError(
                "engine=fused has products of 8 bits in one process only; use drafts without "
                "method.precision=int8 and int8 in method.skip"
            )
        across, bias = weight.transposed()
        if across.device.type == "cpu":
            made = Int8Weight(across.t(), bias)
        else:
            from skipbench.lm.cuda_graphs import int8

            known = self._int8[0].fault if self._int8 else int8.int8_fault(across)
            made = int8.GpuInt8Weight(across.t(), bias, known)
        self._int8.append(made)
        return made

    def likely_head(self, hidden: Tensor, ids: Tensor) -> Tensor:
        if isinstance(self._head, ParallelWeight):
            return super().likely_head(hidden, ids)
        if self._likely is None or self._likely[0] is not ids:
            self._likely = ids, self._head.of_outputs(ids)
        few = self._likely[1](self._final_norm(hidden))
        logits = few.new_full((len(few), self._head.outputs), float("-inf"))
        return logits.index_copy_(1, ids, few)


def _rms_norm(module: Any) -> elementwise.Norm:
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


def _attention(
    parts: AttentionParts,
    weights: LayerWeights[W],
    index: int,
    cache: KVCache,
    strict: bool,
    padded: int,
) -> Sublayer:
    kv, d, scale, window = cache.kv_heads, cache.head_dim, parts.scale, parts.window
    heads = weights.output.inputs // d
    group, like, norm = heads // kv, parts.norm.weight, _rms_norm(parts.norm)
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


def _mlp(parts: MlpParts, weights: LayerWeights[W], strict: bool) -> Sublayer:
    norm = _rms_norm(parts.norm)
    inner = elementwise.native_silu(parts.norm.weight) or silu_times

    def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
        most = MOST if strict and metadata.token_rows.verifies else None
        gate_up = weights.gate_up(norm(hidden), most)
        return weights.down.added(hidden, inner(gate_up), most)

    return run
