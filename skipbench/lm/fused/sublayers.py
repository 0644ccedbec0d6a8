"""The two sub-layers of `engine=fused`, from fused weights, by torch's kernels."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.bit_exact import MOST, rows_one_by_one
from skipbench.lm.cache import KVCache
from skipbench.lm.fused.weights import LayerWeights
from skipbench.lm.layer import AttentionModules, MlpModules
from skipbench.lm.llama import Norm, fold, rotated, silu_times, unfold
from skipbench.lm.metadata import AttentionMetadata


class RMSNorm:
    """By the weight and epsilon of a module, in one call of torch's."""

    def __init__(self, module: Any) -> None:
        self.weight, self.eps = module.weight.data, module.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention:
    """The attention of layer `index` over the cache, with its residual."""

    @staticmethod
    def rms_norm(module: Any) -> Norm:
        """The norm of a module on its device."""
        return RMSNorm(module)

    def __init__(
        self,
        modules: AttentionModules,
        weights: LayerWeights,
        index: int,
        cache: KVCache,
        strict: bool,
        padded_rows: int,
    ) -> None:
        """
        Args:
            strict: verified rows pass attention with the bits of one.
            padded_rows: of every pass, where it is strict on a GPU; else 0.
        """
        self.scale, self.window = modules.scale, modules.window
        self.qk_norms = modules.qk_norms and [RMSNorm(norm) for norm in modules.qk_norms]
        self.weights, self.index, self.cache = weights, index, cache
        self.kv, self.d = cache.kv_heads, cache.head_dim
        self.heads = weights.output.inputs // self.d
        self.norm, self.strict, self.padded_rows = self.rms_norm(modules.norm), strict, padded_rows
        self.attend = self.at_once
        if strict:
            self.attend = self.padded if padded_rows else self.one_by_one

    def __call__(self, hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
        most = MOST if self.strict and metadata.token_rows.verifies else None
        cos, sin = metadata.rope
        qkv = self.weights.qkv(self.norm(hidden), most)
        qkv = qkv.view(metadata.rows, self.heads + 2 * self.kv, self.d)
        rows = self.cache.rows[self.index]
        query = self.rotate_and_store(qkv, cos, sin, rows, metadata.start)
        out = self.attend(query, metadata)
        added: Tensor = self.weights.output.added(hidden, out, most)
        return added

    def rotate_and_store(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, start: int
    ) -> Tensor:
        """Queries [T, heads, d]; keys and values go to `rows` of a cache, from `start` on."""
        heads, kv = self.heads, self.kv
        rotated_qk = rotated(qkv, kv, self.qk_norms, cos, sin)
        rows = rows[start : start + qkv.shape[0]]
        rows[:, :kv] = rotated_qk[:, heads:]
        rows[:, kv:] = qkv[:, heads + kv :]
        return rotated_qk[:, :heads]

    def padded(self, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        """As `at_once`, with rows that are no whole chain one by one, each in a pass of
        `padded_rows`.
        """
        rows, padded = metadata.token_rows, self.padded_rows
        if not rows.verifies or (metadata.rows == padded and rows.contiguous_chain):
            return self.at_once(query, metadata)
        out = query.new_zeros(metadata.rows, self.heads * self.d)
        for step in rows_one_by_one(metadata, self.cache.rows[self.index], padded):
            row = F.pad(query[step.row : step.row + 1], (0, 0, 0, 0, 0, padded - 1))
            out[step.row] = self.at_once(row, step.alone)[0]
        return out

    def one_by_one(self, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        """As `at_once`, with verified rows each in the call of a pass of one."""
        if metadata.rows == 1 or not metadata.token_rows.verifies:
            return self.at_once(query, metadata)
        each = rows_one_by_one(metadata, self.cache.rows[self.index])
        rows = (self.at_once(query[s.row : s.row + 1], s.alone) for s in each)
        return torch.cat(list(rows))

    def at_once(self, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Queries [T, heads, d] over the cache up to the metadata's end -> [T, heads * d]."""
        end, t = metadata.end, metadata.rows
        cache = self.cache
        keys, values = (of[self.index].narrow(2, 0, end) for of in (cache.keys, cache.values))
        mask = metadata.mask(self.window, self.heads // self.kv)
        if mask is not None:
            # The queries of a group are rows of one product over their shared keys: kernels that
            # take a mask want no groups.
            folded = fold(query, self.kv)
            out = F.scaled_dot_product_attention(folded, keys, values, mask, scale=self.scale)
            return unfold(out, t)
        if t == 1:
            return self._one_row(query, keys, values)
        return self._from_row_0(query, keys, values)

    def _one_row(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        query = query.view(1, self.kv, -1, self.d)
        out = F.scaled_dot_product_attention(query, keys, values, scale=self.scale)
        return out.reshape(1, self.heads * self.d)  # some kernels of a GPU lay rows outside heads

    def _from_row_0(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """A chain from row 0 over itself: queries [T, heads, d], keys and values [1, KV, T, d] ->
        [T, heads * d].
        """
        (t, heads, d), kv = query.shape, self.kv
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
            query, keys, values, is_causal=True, scale=self.scale, enable_gqa=gqa
        )
        return out.permute(2, 0, 1, 3).reshape(t, heads * d)


class Mlp:
    """The gated MLP of a layer, with its residual."""

    rms_norm = staticmethod(Attention.rms_norm)

    def __init__(self, modules: MlpModules, weights: LayerWeights, strict: bool) -> None:
        self.norm, self.weights, self.strict = self.rms_norm(modules.norm), weights, strict
        self.silu_times: Norm = silu_times  # [T, 2 F] -> [T, F]

    def __call__(self, hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
        most = MOST if self.strict and metadata.token_rows.verifies else None
        gate_up = self.weights.gate_up(self.norm(hidden), most)
        out: Tensor = self.weights.down.added(hidden, self.silu_times(gate_up), most)
        return out
