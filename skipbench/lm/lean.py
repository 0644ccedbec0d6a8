"""`engine=lean`: the same arithmetic from the same weights, in fewer and larger calls.

Queries, keys and values come from one product, gate and up from one, the residual sum is part of the output products, and
attention reads a slice of the preallocated cache. The Hugging Face modules keep working: their weights become views of the
fused ones, so that nothing is stored twice.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.attend import fold, unfold
from skipbench.lm.cache import KVCache
from skipbench.lm.families import Family
from skipbench.lm.frame import Frame
from skipbench.lm.modules import Sublayer
from skipbench.lm.strict import laid_out
from skipbench.lm.weights import Weights, pass_bytes


class LeanEngine:
    """Sub-layers as `hidden [T, D], frame -> hidden [T, D]`, in the order they are run."""

    name = "lean"

    def __init__(self, model: Any, family: Family, cache: KVCache, spare_mib: int, strict: bool = False) -> None:
        """`spare_mib`: memory that second layouts of weights may take, MiB; `strict`: verified rows pass attention one by one."""
        if model.config.hidden_act != "silu":
            raise SkipbenchError(
                f"engine=lean knows hidden_act 'silu' only, the model has {model.config.hidden_act!r}; use engine=modules"
            )
        self.model = model
        weights = Weights(spare_mib, pass_bytes(model))
        self.sublayers: list[Sublayer] = []
        for index, layer in enumerate(model.model.layers):
            window = family.window(model.config, index)
            self.sublayers.append(
                _attention(layer, index, window, family.qk_norm, model.config, cache, weights, strict)
            )
            self.sublayers.append(_mlp(layer, model.config, weights))
        self._final_norm = _Norm(model.model.norm)
        self._embedding = model.model.embed_tokens.weight
        tied = model.lm_head.weight.data_ptr() == self._embedding.data_ptr()
        self._head = weights.fuse(model, ["lm_head"], 1, keep=tied)
        self.kernels, self.notes = weights.kernels, weights.notes(self._embedding)

    def embed(self, tokens: Tensor) -> Tensor:
        """[T] -> [T, D]"""
        return F.embedding(tokens, self._embedding)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [T, V] after the final norm."""
        return self._head(self._final_norm(hidden))


class _Norm:
    """RMS norm; on a CPU in fewer or cheaper calls than torch's, and one row of float32 gets its scale through Python."""

    def __init__(self, module: Any) -> None:
        self.weight, self.eps = module.weight.data, module.variance_epsilon
        self.shape = tuple(self.weight.shape)
        self.on_cpu, self.scalar = self.weight.device.type == "cpu", self.weight.dtype == torch.float32
        self.wide = self.weight.float()
        self.zero = torch.zeros(1)
        self.room = torch.full((1, 1), self.eps)

    def __call__(self, hidden: Tensor) -> Tensor:
        if not self.on_cpu:
            return F.rms_norm(hidden, self.shape, self.weight, self.eps)
        if self.scalar and hidden.shape[0] == 1:
            row = hidden.view(-1)
            mean_square = float(torch.dot(row, row)) / self.shape[0]
            return torch.addcmul(self.zero, hidden, self.weight, value=1.0 / math.sqrt(mean_square + self.eps))
        wide = hidden.float()  # float32 is not copied
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self.room, norm, norm, value=1.0 / self.shape[0]).rsqrt_()
        if self.scalar:
            return torch.mul(hidden, self.weight).mul_(scale)
        return wide.mul_(scale).mul_(self.wide).to(hidden.dtype)


def _turns(frame: Frame) -> tuple[Tensor, Tensor]:
    """Cosine and sine [T, 1, d] of a frame's rows, made once a pass; the sine carries the sign of `rotate_half`."""
    if frame.turns is None and frame.whole is not None:
        cos, sin = _turns(frame.whole)
        frame.turns = cos[: frame.rows], sin[: frame.rows]
    elif frame.turns is None:
        tables, index = frame.tables, frame.index
        if tables.turns is None:
            half = tables.sin.shape[1] // 2
            sin = torch.cat((-tables.sin[:, :half], tables.sin[:, half:]), -1)
            tables.turns = tables.cos[:, None], sin[:, None]
        cos, sin = tables.turns
        frame.turns = (
            (cos[index], sin[index])
            if isinstance(index, slice)
            else (cos.index_select(0, index), sin.index_select(0, index))
        )
    return frame.turns


def _attention(
    layer: Any,
    index: int,
    window: int | None,
    qk_norm: bool,
    config: Any,
    cache: KVCache,
    weights: Weights,
    strict: bool,
) -> Sublayer:
    attn = layer.self_attn
    d, kv = attn.head_dim, config.num_key_value_heads
    heads = config.num_attention_heads
    rotated, half, scale = heads + kv, d // 2, attn.scaling
    norm = _Norm(layer.input_layernorm)
    qkv_of = weights.fuse(attn, ["q_proj", "k_proj", "v_proj"], config.num_hidden_layers)
    out_of = weights.fuse(attn, ["o_proj"], config.num_hidden_layers)
    q_norm, k_norm = (attn.q_norm, attn.k_norm) if qk_norm else (None, None)
    group = heads // kv

    def attend(query: Tensor, frame: Frame) -> Tensor:
        """Queries [T, heads, d] over the cache up to the frame's end -> [T, heads * d]."""
        t, end, mask = frame.rows, frame.end, frame.mask(window, group)
        keys, values = cache.keys[index][:, :, :end], cache.values[index][:, :, :end]
        # The queries of a group are rows of one product over their shared keys: kernels that take a mask want no groups.
        if mask is not None:
            out = F.scaled_dot_product_attention(fold(query, kv), keys, values, mask, scale=scale)
            return unfold(out, t)
        if t == 1:
            query = query.view(1, kv, group, d)
            return F.scaled_dot_product_attention(query, keys, values, scale=scale).view(1, heads * d)
        query = query.transpose(0, 1)[None]  # a square chain from row 0
        out = F.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale, enable_gqa=group > 1)
        return out[0].transpose(0, 1).reshape(t, heads * d)

    def run(hidden: Tensor, frame: Frame) -> Tensor:
        t = frame.rows
        cos, sin = _turns(frame)
        qkv = qkv_of(norm(hidden)).view(t, heads + 2 * kv, d)
        turned = qkv[:, :rotated]
        if q_norm is not None and k_norm is not None:
            normed = (F.rms_norm(turned[:, :heads], (d,), q_norm.weight, q_norm.variance_epsilon),
                      F.rms_norm(turned[:, heads:], (d,), k_norm.weight, k_norm.variance_epsilon))  # fmt: skip
            turned = torch.cat(normed, 1)
        turned = torch.addcmul(turned * cos, torch.roll(turned, half, -1), sin)
        rows = cache.rows[index][frame.start : frame.end]
        rows[:, :kv] = turned[:, heads:]
        rows[:, kv:] = qkv[:, rotated:]
        if strict and t > 1 and frame.span.verifies:
            each = laid_out(frame, cache.rows[index])
            out = torch.cat([attend(turned[step.row : step.row + 1, :heads], step.alone) for step in each])
        else:
            out = attend(turned[:, :heads], frame)
        return out_of.added(hidden, out)

    return run


def _mlp(layer: Any, config: Any, weights: Weights) -> Sublayer:
    norm = _Norm(layer.post_attention_layernorm)
    up_of = weights.fuse(layer.mlp, ["gate_proj", "up_proj"], config.num_hidden_layers)
    down_of = weights.fuse(layer.mlp, ["down_proj"], config.num_hidden_layers)

    def run(hidden: Tensor, frame: Frame) -> Tensor:
        gate, up = up_of(norm(hidden)).chunk(2, -1)
        inner = F.silu(gate) * up
        return down_of.added(hidden, inner)

    return run
