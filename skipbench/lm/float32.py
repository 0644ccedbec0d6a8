"""Logits in float32 arithmetic from a model of any precision, which decide whether two outputs part
at a tie. Every weight is widened where it is used and dropped again. The rows of a text pass each
layer in chunks, so that memory does not grow with the square of its length.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipbench.lm.cache import KVCache, upload
from skipbench.lm.families import angle_limit, describe, kv_shape, modules_of
from skipbench.lm.layer import Modules, text_config
from skipbench.lm.llama import fold, unfold
from skipbench.lm.metadata import AttentionMetadata, rotary_cache
from skipbench.lm.reference import ReferenceEngine, scaled_logits
from skipbench.lm.rows import TokenRows

HEAD_ROWS = 8192  # of the output table that are widened at once
CHUNK = 512  # rows of the text that pass a layer at once
SCORES = 2**26  # attention scores of one call at most: 256 MiB where a kernel holds them


def float32_logits(
    model: Any, tokens: list[int], rows: int = 1, kept: dict[int, Tensor] | None = None
) -> Tensor | None:
    """Logits [rows, V] after the last `rows` of `tokens`, in float32 on the host; `None` where the
    weights are not kept as numbers (quantised).

    Args:
        kept: widened weights of the passes before, by their ids, to which this one adds its own: a
            second copy of the model, for many passes.
    """
    modules = modules_of(model)
    if not all(p.is_floating_point() for p in model.parameters()):
        return None
    with _in_float32(model, modules, kept):
        last = _last_states(model, modules, tokens, rows)
    head, bias = modules.head.weight, modules.head.bias
    table = head if kept is None else _wide(head, kept)
    pieces = [F.linear(last.to(head.device), p.float()) for p in torch.split(table, HEAD_ROWS)]
    logits = torch.cat(pieces, -1)
    logits = logits if bias is None else logits + bias.float()
    return scaled_logits(modules, logits).cpu()


def _last_states(model: Any, modules: Modules, tokens: list[int], count: int) -> Tensor:
    """The normed states [count, D] of the last tokens, by the model's own modules."""
    devices = [next(a.module.parameters()).device for a, _ in modules.layers]
    # keys and values of one layer, which those of the next overwrite
    cache = KVCache([*dict.fromkeys(devices)], *kv_shape(model), torch.float32)
    cache.allocate(len(tokens))
    held = [cache.devices.index(device) for device in devices]
    cache.keys, cache.values = ([of[i] for i in held] for of in (cache.keys, cache.values))
    limit = angle_limit(text_config(model.config))
    tables = {d: rotary_cache(modules, len(tokens), torch.float32, d, limit) for d in cache.devices}
    engine = ReferenceEngine(model, describe(model), cache)
    hidden = engine.embed(upload(torch.tensor(tokens), modules.embedding.weight.device)).float()
    for index, device in enumerate(devices):
        hidden = hidden.to(device)
        for at, part in enumerate(torch.split(hidden, CHUNK)):
            rows = TokenRows.chain(at * CHUNK, len(part))
            metadata, state = AttentionMetadata(rows, tables[device]), part
            for sublayer in engine.sublayers[2 * index : 2 * index + 2]:
                state = sublayer(state, metadata)
            part.copy_(state)
    last: Tensor = modules.norm(hidden[-count:].to(modules.norm.weight.device))
    return last


def _wide(weight: Tensor, kept: dict[int, Tensor] | None) -> Tensor:
    if kept is None:
        return weight.data.float()
    if id(weight) not in kept:
        kept[id(weight)] = weight.data.float()
    return kept[id(weight)]


@contextmanager
def _in_float32(model: Any, modules: Modules, kept: dict[int, Tensor] | None) -> Iterator[None]:
    """Keeps the weights of each module of the layers in float32 while it runs; they come back
    untouched. Attention is `_attend` where it would be torch's.
    """
    from transformers import AttentionInterface

    AttentionInterface.register("skipbench_float32", _attend)
    config, held = text_config(model.config), dict[nn.Module, list[tuple[Tensor, Tensor]]]()
    kernel = config._attn_implementation

    def narrow(module: nn.Module) -> list[Tensor]:
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        numbers = (t for t in own if t.is_floating_point() and t.dtype != torch.float32)
        return [*numbers]

    def widen(module: nn.Module, _: Any) -> None:
        held[module] = [(t, t.data) for t in narrow(module)]
        for tensor, _ in held[module]:
            tensor.data = _wide(tensor, kept)

    def restore(module: nn.Module, *_: Any) -> None:
        for tensor, data in held.pop(module, []):
            tensor.data = data

    whole = [modules.norm, *(m for layer in modules.layers for of in layer for m in of.weighted)]
    with ExitStack() as stack:
        every = {inner for outer in whole for inner in outer.modules()}
        for module in filter(narrow, every):
            stack.enter_context(module.register_forward_pre_hook(widen))
            stack.enter_context(module.register_forward_hook(restore, always_call=True))
        try:
            config._attn_implementation = "skipbench_float32" if kernel == "sdpa" else kernel
            yield
        finally:
            config._attn_implementation = kernel


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Hugging Face's attention, `SCORES` at once and without copies of keys for the heads of a
    group: queries [1, H, R, d] over [1, KV, T, d] -> [1, R, H, d].
    """
    (heads, rows), (kv, end) = query.shape[1:3], key.shape[1:3]
    out, size = list[Tensor](), max(1, SCORES // (heads * end))
    for at in range(0, rows, size):
        part, mask = query[0, :, at : at + size].transpose(0, 1), attention_mask
        if mask is not None:
            mask = mask[0, 0, at : at + size].repeat(heads // kv, 1)
        folded = fold(part, kv)
        seen = F.scaled_dot_product_attention(folded, key, value, mask, scale=scaling)
        out.append(unfold(seen, len(part)))
    return torch.cat(out).view(1, rows, heads, -1), None
