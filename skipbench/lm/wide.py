"""Logits in float32 arithmetic from a model of any precision: what decides whether two outputs part at a tie.

Every weight is widened where it is used and dropped again, so that no second copy of the model is held.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.families import family_of
from skipbench.lm.modules import rotary_tables

HEAD_ROWS = 8192  # of the output table that are widened at once


def wide_logits(model: Any, tokens: list[int]) -> Tensor | None:
    """Logits [V] behind the last of `tokens`, in float32 on the host; `None` where the weights are not kept as numbers (quantised)."""
    first = model.model.layers[0].mlp.down_proj.weight
    if not first.is_floating_point():
        return None
    family = family_of(model.config)
    table = model.model.embed_tokens.weight
    hidden = F.embedding(torch.tensor(tokens, device=table.device), table).float()
    for index, layer in enumerate(model.model.layers):
        hidden = hidden.to(layer.self_attn.q_proj.weight.device)
        hidden = hidden + _attention(model, layer.self_attn, _norm(layer.input_layernorm, hidden), family, index)
        inner = _norm(layer.post_attention_layernorm, hidden)
        gate, up = _linear(layer.mlp.gate_proj, inner), _linear(layer.mlp.up_proj, inner)
        hidden = hidden + _linear(layer.mlp.down_proj, F.silu(gate) * up)
    head = model.lm_head.weight
    last = _norm(model.model.norm, hidden[-1:].to(head.device))
    return torch.cat([F.linear(last, part.float())[0].cpu() for part in torch.split(head, HEAD_ROWS)])


def _attention(model: Any, attn: Any, x: Tensor, family: Any, index: int) -> Tensor:
    """[T, D] normed -> [T, D], over the T rows themselves."""
    d, kv, rows = attn.head_dim, model.config.num_key_value_heads, x.shape[0]
    query, key, value = (_linear(p, x).view(rows, -1, d) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
    if family.qk_norm:
        query, key = _norm(attn.q_norm, query), _norm(attn.k_norm, key)
    cos, sin = rotary_tables(model, rows, torch.float32, x.device)
    query, key = (t * cos[:, None] + _half_turned(t) * sin[:, None] for t in (query, key))
    sees = torch.ones(rows, rows, dtype=torch.bool, device=x.device).tril_()
    window = family.window(model.config, index)
    if window is not None:
        sees = sees.triu_(1 - window)
    q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, sees, scale=attn.scaling, enable_gqa=kv != query.shape[1])
    return _linear(attn.o_proj, out[0].transpose(0, 1).reshape(rows, -1))


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _linear(module: Any, x: Tensor) -> Tensor:
    return F.linear(x, module.weight.float(), None if module.bias is None else module.bias.float())


def _norm(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], module.weight.float(), module.variance_epsilon)
