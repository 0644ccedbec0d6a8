"""Logits in float32 arithmetic from a model of any precision: what decides whether two outputs part at a tie.

Every weight is widened where it is used and dropped again, so that no second copy of the model is held. The rows of a text
pass each layer in chunks, so that memory grows with its length and not with the square of it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.attend import fold, unfold
from skipbench.lm.families import family_of
from skipbench.lm.modules import rotary_tables

HEAD_ROWS = 8192  # of the output table that are widened at once
CHUNK = 512  # rows of the text that pass a layer at once
SCORES = 2**26  # attention scores of one call at most: 256 MiB where a kernel holds them


def wide_logits(model: Any, tokens: list[int]) -> Tensor | None:
    """Logits [V] behind the last of `tokens`, in float32 on the host; `None` where the weights are not kept as numbers (quantised)."""
    first = model.model.layers[0].mlp.down_proj.weight
    if not first.is_floating_point():
        return None
    family = family_of(model.config)
    table = model.model.embed_tokens.weight
    hidden = F.embedding(torch.tensor(tokens, device=table.device), table).float()
    for index, layer in enumerate(model.model.layers):
        attn, window = layer.self_attn, family.window(model.config, index)
        hidden = hidden.to(attn.q_proj.weight.device)
        q_norm, k_norm = (attn.q_norm, attn.k_norm) if family.qk_norm else (None, None)
        cos, sin = rotary_tables(model, len(tokens), torch.float32, hidden.device)
        chunks = [slice(start, start + CHUNK) for start in range(0, len(tokens), CHUNK)]
        cached: list[tuple[Tensor, Tensor]] = []
        for rows in chunks:
            x = _norm(layer.input_layernorm, hidden[rows])
            key = _turned(_heads(attn.k_proj, attn.head_dim, x, k_norm), cos[rows], sin[rows])
            cached.append((key, _heads(attn.v_proj, attn.head_dim, x)))
        keys, values = (torch.cat(parts) for parts in zip(*cached, strict=True))
        for rows in chunks:
            part = hidden[rows]
            x = _norm(layer.input_layernorm, part)
            query = _turned(_heads(attn.q_proj, attn.head_dim, x, q_norm), cos[rows], sin[rows])
            part += _linear(attn.o_proj, _attention(query, keys, values, rows.start, window, attn.scaling))
            inner = _norm(layer.post_attention_layernorm, part)
            gate, up = _linear(layer.mlp.gate_proj, inner), _linear(layer.mlp.up_proj, inner)
            part += _linear(layer.mlp.down_proj, F.silu(gate) * up)
    head = model.lm_head.weight
    last = _norm(model.model.norm, hidden[-1:].to(head.device))
    return torch.cat([F.linear(last, part.float())[0].cpu() for part in torch.split(head, HEAD_ROWS)])


def _attention(query: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None, scale: float) -> Tensor:
    """Queries [R, H, d] of the rows from `start` on, over the keys and values [T, KV, d] of all rows -> [R, H * d]."""
    heads, kv = query.shape[1], keys.shape[1]
    out: list[Tensor] = []
    for rows in torch.split(query, max(1, SCORES // (heads * len(keys)))):
        end = start + len(rows)
        row = torch.arange(start, end, device=query.device)[:, None]
        column = torch.arange(end, device=query.device)
        sees = column <= row if window is None else (column <= row) & (row - column < window)
        k, v = (t[:end].transpose(0, 1)[None] for t in (keys, values))
        attended = F.scaled_dot_product_attention(fold(rows, kv), k, v, sees.repeat(heads // kv, 1), scale=scale)
        out.append(unfold(attended, len(rows)))
        start = end
    return torch.cat(out)


def _heads(projection: Any, d: int, x: Tensor, norm: Any = None) -> Tensor:
    """[R, D] -> [R, H, d]"""
    heads = _linear(projection, x).view(len(x), -1, d)
    return heads if norm is None else _norm(norm, heads)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos[:, None] + _half_turned(x) * sin[:, None]


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _linear(module: Any, x: Tensor) -> Tensor:
    return F.linear(x, module.weight.float(), None if module.bias is None else module.bias.float())


def _norm(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], module.weight.float(), module.variance_epsilon)
