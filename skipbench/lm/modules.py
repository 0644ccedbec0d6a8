"""`engine=modules`: the reference. It calls the Hugging Face modules one by one, with our own cache and masks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.families import Family
from skipbench.lm.frame import Frame

Sublayer = Callable[[Tensor, Frame], Tensor]


class _LayerView:
    """What a Hugging Face attention module sees of the cache: `update` writes the span's rows and returns all to its end."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.frame: Frame | None = None

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """`keys`, `values`: [1, KV, T, d] -> [1, KV, end, d]."""
        assert self.frame is not None
        start, end = self.frame.start, self.frame.end
        self.cache.keys[layer][:, :, start:end] = keys
        self.cache.values[layer][:, :, start:end] = values
        return self.cache.keys[layer][:, :, :end], self.cache.values[layer][:, :, :end]


class ModulesEngine:
    """Sub-layers of any known family as `hidden [T, D], frame -> hidden [T, D]`, in the order they are run."""

    name = "modules"

    def __init__(self, model: Any, family: Family, cache: KVCache) -> None:
        self.model = model
        self.kernels: dict[str, str] = {}
        self.notes: list[str] = []
        self._view = _LayerView(cache)
        self.sublayers: list[Sublayer] = []
        for index, layer in enumerate(model.model.layers):
            self.sublayers.append(self._attention(layer, family.window(model.config, index)))
            self.sublayers.append(self._mlp(layer))

    def _attention(self, layer: Any, window: int | None) -> Sublayer:
        def run(hidden: Tensor, frame: Frame) -> Tensor:
            self._view.frame = frame
            mask = frame.mask(window)
            tables = frame.tables
            out, _ = layer.self_attn(
                hidden_states=layer.input_layernorm(hidden[None]),
                position_embeddings=(tables.cos[frame.index][None], tables.sin[frame.index][None]),
                attention_mask=None if mask is None else mask[None, None],
                past_key_values=self._view,
            )
            result: Tensor = hidden + out[0]
            return result

        return run

    def _mlp(self, layer: Any) -> Sublayer:
        def run(hidden: Tensor, frame: Frame) -> Tensor:
            result: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden[None]))[0]
            return result

        return run

    def embed(self, tokens: Tensor) -> Tensor:
        """[T] -> [T, D]"""
        rows: Tensor = self.model.model.embed_tokens(tokens)
        return rows

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [T, V] after the final norm."""
        logits: Tensor = self.model.lm_head(self.model.model.norm(hidden[None]))[0]
        return logits


def rotary_tables(model: Any, positions: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [P, d] of every position, from the model's own rotary module."""
    index = torch.arange(positions, device=model.model.rotary_emb.inv_freq.device)[None]
    cos, sin = model.model.rotary_emb(torch.empty(0, dtype=dtype, device=index.device), index)
    return cos[0].to(device), sin[0].to(device)
