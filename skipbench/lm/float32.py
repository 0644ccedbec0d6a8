"""Logits in float32 arithmetic from a model of any precision, which decide whether two outputs part
at a tie. Every weight is widened where it is used and dropped again. The rows of a text pass each
layer in chunks, so that memory does not grow with the square of its length.
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
from skipbench.lm.metadata import AttentionMetadata, rotary_cache
from skipbench.lm.reference import ReferenceEngine, scaled_logits
from skipbench.lm.rows import TokenRows
from skipbench.lm.upload import upload

HEAD_ROWS = 8192  # of the output table that are widened at once
CHUNK = 512  # rows of the text that pass a layer at once
SCORES = 2**26  # attention scores of one call at most: 256 MiB where a kernel holds them

Linear = tuple[Tensor, Tensor | None]  # weight [out, in] and bias [out] in the model's precision


def float32_logits(model: Any, tokens: list[int]) -> Tensor | None:
    """Logits [V] after the last of `tokens`, in float32 on the host; `None` where the weights are
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
    """The normed state [1, D] of the last token, in layers of Llama's form in any weight layout."""
    heads, (kv, d) = text_config(model.config).num_attention_heads, kv_shape(model)
    table = parts.embedding.weight
    hidden = F.embedding(upload(torch.tensor(tokens), table.device), table).float()
    chunks = [slice(at, at + CHUNK) for at in range(0, len(tokens), CHUNK)]
    for attention, mlp in parts.layers:
        query_of, key_of, value_of = _linears(attention.qkv, [heads * d, kv * d, kv * d])
        ((out_of,), (down_of,)) = _linears([attention.output]), _linears([mlp.down])
        gate_of, up_of = _linears(mlp.gate_up, [down_of[0].shape[1]] * 2)
        hidden = hidden.to(query_of[0].device)
        q_norm, k_norm = attention.qk_norms or (None, None)
        cos, sin = rotary_cache(parts, len(tokens), torch.float32, hidden.device, None).rope

        def project(linear: Linear, x: Tensor, norm: Any = None) -> Tensor:
            """[R, D] -> [R, H, d]"""
            projected = _linear(linear, x).view(len(x), -1, d)
            return projected if norm is None else _norm(norm, projected)

        keys, values = [], []
        for rows in chunks:
            x = _norm(attention.norm, hidden[rows])
            keys.append(_turned(project(key_of, x, k_norm), cos[rows], sin[rows]))
            values.append(project(value_of, x))
        key, value = torch.cat(keys), torch.cat(values)
        for rows in chunks:
            part = hidden[rows]
            query = project(query_of, _norm(attention.norm, part), q_norm)
            query = _turned(query, cos[rows], sin[rows])
            seen = _attention(query, key, value, rows.start, attention.window, attention.scale)
            part += _linear(out_of, seen)
            inner = _norm(mlp.norm, part)
            part += _linear(down_of, F.silu(_linear(gate_of, inner)) * _linear(up_of, inner))
    return _norm(parts.norm, hidden[-1:].to(parts.norm.weight.device))


def _any(model: Any, tokens: list[int]) -> Tensor:
    """The same of any family, by its own modules under the reference engine."""
    parts, limit = parts_of(model), angle_limit(text_config(model.config))
    devices = [next(a.module.parameters()).device for a, _ in parts.layers]
    cache = KVCache(devices, *kv_shape(model), torch.float32)
    cache.allocate(len(tokens))
    engine = ReferenceEngine(model, describe(model), cache)
    starts = range(0, len(tokens), CHUNK)
    rows = [TokenRows.chain(at, min(CHUNK, len(tokens) - at)) for at in starts]
    metadata: dict[torch.device, list[AttentionMetadata]] = {}
    for device in dict.fromkeys(devices):
        tables = rotary_cache(parts, len(tokens), torch.float32, device, limit)
        metadata[device] = [AttentionMetadata(r, tables) for r in rows]
    hidden = engine.embed(torch.tensor(tokens, device=parts.embedding.weight.device)).float()
    for index, (device, layer) in enumerate(zip(devices, parts.layers, strict=True)):
        with _widened(*(m for part in layer for m in (part.norm, part.module, part.after))):
            chunks = []
            split = torch.split(hidden.to(device), CHUNK)
            for at, part in zip(metadata[device], split, strict=True):
                for sublayer in engine.sublayers[2 * index : 2 * index + 2]:
                    part = sublayer(part, at)
                chunks.append(part)
        hidden = torch.cat(chunks)
    with _widened(parts.norm):
        last: Tensor = parts.norm(hidden[-1:].to(parts.norm.weight.device))
    return last


@contextmanager
def _widened(*modules: Any) -> Iterator[None]:
    """Keeps modules in float32 meanwhile; their weights come back untouched."""
    held = [m for m in modules if isinstance(m, torch.nn.Module)]
    tensors = {id(t): t for m in held for t in (*m.parameters(), *m.buffers())}
    before = [(t, t.data) for t in tensors.values() if t.is_floating_point()]
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
    """Queries [R, H, d] of the rows from `start` on over all [T, KV, d] -> [R, H * d]."""
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


def _linears(modules: Sequence[Any], sizes: list[int] | None = None) -> list[Linear]:
    """Weight and bias of each linear module; parts of `sizes` rows where one module holds all."""
    if sizes is None or len(modules) == len(sizes):
        return [(module.weight, module.bias) for module in modules]
    (whole,) = modules
    biases = [None] * len(sizes) if whole.bias is None else torch.split(whole.bias, sizes)
    return list(zip(torch.split(whole.weight, sizes), biases, strict=True))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads [R, H, d] at their positions; cosine and sine as `RotaryCache.rope`."""
    return x * cos + torch.roll(x, x.shape[2] // 2, -1) * sin


def _linear(linear: Linear, x: Tensor) -> Tensor:
    weight, bias = linear
    return F.linear(x, weight.float(), None if bias is None else bias.float())


def _norm(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], module.weight.float(), module.variance_epsilon)
