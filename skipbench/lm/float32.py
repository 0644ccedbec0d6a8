"""Logits in float32 arithmetic from a model of any precision, which decide whether two outputs part
at a tie.

Every weight is widened where it is used and dropped again, so that no second copy of the model is
held. The rows of a text pass each layer in chunks, so that memory grows with its length and not
with the square of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.families import angle_limit, describe, kv_shape, parts_of, unlike_llama
from skipbench.lm.layer import ModelParts, text_config
from skipbench.lm.llama import fold, unfold
from skipbench.lm.metadata import AttentionMetadata, rotary_cache, rotary_tables
from skipbench.lm.reference import ReferenceEngine, scaled_logits
from skipbench.lm.rows import TokenRows
from skipbench.lm.upload import upload

HEAD_ROWS = 8192  # of the output table that are widened at once
CHUNK = 512  # rows of the text that pass a layer at once
SCORES = 2**26  # attention scores of one call at most: 256 MiB where a kernel holds them

Linear = tuple[Tensor, Tensor | None]
"""Weight [out, in] and bias [out] in the model's precision."""


def float32_logits(model: Any, tokens: list[int]) -> Tensor | None:
    """Logits [V] behind the last of `tokens`, in float32 on the host; `None` where the weights are
    not kept as numbers (quantised).
    """
    parts = parts_of(model)
    if not all(p.is_floating_point() for p in model.parameters()):
        return None
    last = _llama(model, parts, tokens) if unlike_llama(model) is None else _any(model, tokens)
    head = parts.head.weight
    logits = [F.linear(last.to(head.device), p.float())[0] for p in torch.split(head, HEAD_ROWS)]
    bias = parts.head.bias
    return scaled_logits(parts, torch.cat(logits) + (0.0 if bias is None else bias.float())).cpu()


def _llama(model: Any, parts: ModelParts, tokens: list[int]) -> Tensor:
    """The normed state [1, D] of the last token, in layers of Llama's form, whose projections the
    fused engine may hold in other layouts.
    """
    family, config = describe(model), text_config(model.config)
    heads, (kv, d) = config.num_attention_heads, kv_shape(model)
    table = parts.embedding.weight
    hidden = F.embedding(upload(torch.tensor(tokens), table.device), table).float()
    for index, (attention, mlp) in enumerate(parts.layers):
        window = family.window(config, index)
        sizes = heads * d, kv * d, kv * d
        query_of, key_of, value_of = _weights(attention.qkv, sizes)
        hidden = hidden.to(query_of[0].device)
        q_norm, k_norm = attention.qk_norms or (None, None)
        cos, sin = rotary_tables(parts.rotary, len(tokens), torch.float32, hidden.device)
        chunks = [slice(start, start + CHUNK) for start in range(0, len(tokens), CHUNK)]
        cached: list[tuple[Tensor, Tensor]] = []
        for rows in chunks:
            x = _norm(attention.norm, hidden[rows])
            key = _turned(_heads(key_of, d, x, k_norm), cos[rows], sin[rows])
            cached.append((key, _heads(value_of, d, x)))
        keys, values = (torch.cat(chunk) for chunk in zip(*cached, strict=True))
        (out_of,), (down_of,) = _weights([attention.output]), _weights([mlp.down])
        inner_size = down_of[0].shape[1]
        gate_of, up_of = _weights(mlp.gate_up, (inner_size, inner_size))
        for rows in chunks:
            part = hidden[rows]
            x = _norm(attention.norm, part)
            query = _turned(_heads(query_of, d, x, q_norm), cos[rows], sin[rows])
            seen = _attention(query, keys, values, rows.start, window, attention.scale)
            part += _linear(out_of, seen)
            inner = _norm(mlp.norm, part)
            part += _linear(down_of, F.silu(_linear(gate_of, inner)) * _linear(up_of, inner))
    return _norm(parts.norm, hidden[-1:].to(parts.norm.weight.device))


def _any(model: Any, tokens: list[int]) -> Tensor:
    """The same of any family, by its own modules under the reference engine."""
    family, config, parts = describe(model), text_config(model.config), parts_of(model)
    devices = [next(a.module.parameters()).device for a, _ in parts.layers]
    cache = KVCache(devices, *kv_shape(model), torch.float32)
    cache.allocate(len(tokens))
    engine = ReferenceEngine(model, family, cache)
    tables = {
        device: rotary_cache(parts, len(tokens), torch.float32, device, angle_limit(config))
        for device in dict.fromkeys(devices)
    }
    starts = range(0, len(tokens), CHUNK)
    rows = [TokenRows.chain(at, min(CHUNK, len(tokens) - at)) for at in starts]
    metadata = {d: [AttentionMetadata(r, tables[d]) for r in rows] for d in tables}
    table = parts.embedding.weight
    hidden = engine.embed(torch.tensor(tokens, device=table.device)).float()
    for index, device in enumerate(devices):
        attention, mlp = parts.layers[index]
        with _widened(
            attention.norm, attention.module, attention.after, mlp.norm, mlp.module, mlp.after
        ):
            chunks = []
            for at, part in zip(
                metadata[device], torch.split(hidden.to(device), CHUNK), strict=True
            ):
                for sublayer in engine.sublayers[2 * index : 2 * index + 2]:
                    part = sublayer(part, at)
                chunks.append(part)
        hidden = torch.cat(chunks)
    with _widened(parts.norm):
        last: Tensor = parts.norm(hidden[-1:].to(parts.norm.weight.device))
    return last


@contextmanager
def _widened(*modules: Any) -> Iterator[None]:
    """Keeps modules in float32 meanwhile; what they held before comes back untouched."""
    tensors = [
        t
        for m in modules
        if isinstance(m, torch.nn.Module)
        for t in (*m.parameters(), *m.buffers())
    ]
    before = [(t, t.data) for t in {id(t): t for t in tensors}.values() if t.is_floating_point()]
    try:
        for tensor, data in before:
            tensor.data = data.float()
        yield
    finally:
        for tensor, data in before:
            tensor.data = data


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


def _weights(modules: Sequence[Any], sizes: Sequence[int] = ()) -> list[Linear]:
    """Weight and bias of each linear module; parts of `sizes` rows where one module holds all."""
    found = [(module.weight, module.bias) for module in modules]
    if len(found) >= len(sizes):
        return found
    ((weight, bias),) = found
    biases = [None] * len(sizes) if bias is None else torch.split(bias, list(sizes))
    return list(zip(torch.split(weight, list(sizes)), biases, strict=True))


def _heads(projection: Linear, d: int, x: Tensor, norm: Any = None) -> Tensor:
    """[R, D] -> [R, H, d]"""
    heads = _linear(projection, x).view(len(x), -1, d)
    return heads if norm is None else _norm(norm, heads)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos[:, None] + _half_turned(x) * sin[:, None]


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _linear(linear: Linear, x: Tensor) -> Tensor:
    weight, bias = linear
    return F.linear(x, weight.float(), None if bias is None else bias.float())


def _norm(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], module.weight.float(), module.variance_epsilon)
