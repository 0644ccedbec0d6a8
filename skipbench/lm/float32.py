"""Logits in float32 arithmetic from a model of any precision: what decides whether two outputs part
at a tie.

Every weight is widened where it is used and dropped again, so that no second copy of the model is
held. The rows of a text pass each layer in chunks, so that memory grows with its length and not
with the square of it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.attention import fold, unfold
from skipbench.lm.families import family_of, parts_of
from skipbench.lm.metadata import rotary_tables
from skipbench.lm.upload import upload

HEAD_ROWS = 8192  # of the output table that are widened at once
CHUNK = 512  # rows of the text that pass a layer at once
SCORES = 2**26  # attention scores of one call at most: 256 MiB where a kernel holds them


def float32_logits(model: Any, tokens: list[int]) -> Tensor | None:
    """Logits [V] behind the last of `tokens`, in float32 on the host; `None` where the weights are
    not kept as numbers (quantised).
    """
    parts, family = parts_of(model), family_of(model.config)
    if not parts.layers[0][1].down.weight.is_floating_point():
        return None
    table = parts.embedding.weight
    hidden = F.embedding(upload(torch.tensor(tokens), table.device), table).float()
    for index, (attention, mlp) in enumerate(parts.layers):
        window, (query_of, key_of, value_of) = family.window(model.config, index), attention.qkv
        hidden = hidden.to(query_of.weight.device)
        q_norm, k_norm = attention.qk_norms or (None, None)
        cos, sin = rotary_tables(parts.rotary, len(tokens), torch.float32, hidden.device)
        chunks = [slice(start, start + CHUNK) for start in range(0, len(tokens), CHUNK)]
        cached: list[tuple[Tensor, Tensor]] = []
        for rows in chunks:
            x = _norm(attention.norm, hidden[rows])
            key = _turned(_heads(key_of, attention.head_dim, x, k_norm), cos[rows], sin[rows])
            cached.append((key, _heads(value_of, attention.head_dim, x)))
        keys, values = (torch.cat(chunk) for chunk in zip(*cached, strict=True))
        for rows in chunks:
            part = hidden[rows]
            x = _norm(attention.norm, part)
            query = _turned(_heads(query_of, attention.head_dim, x, q_norm), cos[rows], sin[rows])
            part += _linear(
                attention.output,
                _attention(query, keys, values, rows.start, window, attention.scale),
            )
            inner = _norm(mlp.norm, part)
            gate, up = (_linear(projection, inner) for projection in mlp.gate_up)
            part += _linear(mlp.down, mlp.module.act_fn(gate) * up)
    head = parts.head.weight
    last = _norm(parts.norm, hidden[-1:].to(head.device))
    return torch.cat(
        [F.linear(last, part.float())[0].cpu() for part in torch.split(head, HEAD_ROWS)]
    )


def _attention(
    query: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None, scale: float
) -> Tensor:
    """Queries [R, H, d] of the rows from `start` on, over the keys and values [T, KV, d] of all
    rows -> [R, H * d].
    """
    heads, kv = query.shape[1], keys.shape[1]
    out: list[Tensor] = []
    for rows in torch.split(query, max(1, SCORES // (heads * len(keys)))):
        end = start + len(rows)
        row = torch.arange(start, end, device=query.device)[:, None]
        column = torch.arange(end, device=query.device)
        sees = column <= row if window is None else (column <= row) & (row - column < window)
        k, v = (t[:end].transpose(0, 1)[None] for t in (keys, values))
        attended = F.scaled_dot_product_attention(
            fold(rows, kv), k, v, sees.repeat(heads // kv, 1), scale=scale
        )
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
