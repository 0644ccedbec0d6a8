"""`engine=reference`: calls the Hugging Face modules one by one, with our own cache and masks."""

from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.engine import Sublayer, refuse_strict
from skipbench.lm.families import AttentionParts, Family, MlpParts, parts_of
from skipbench.lm.metadata import AttentionMetadata, RotaryCache


def make_engine(
    model: Any, family: Family, cache: KVCache, *, strict: bool, spare_mib: int
) -> "ReferenceEngine":
    """As `MakeEngine`; it lays no weights out, so that `spare_mib` has no effect."""
    refuse_strict(strict, "reference")
    return ReferenceEngine(model, family, cache)


class _LayerView:
    """The cache as a Hugging Face attention module sees it: `update` writes the rows and returns
    all up to their end.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.metadata: AttentionMetadata | None = None

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """`keys`, `values`: [1, KV, T, d] -> [1, KV, end, d]."""
        assert self.metadata is not None
        start, end = self.metadata.start, self.metadata.end
        self.cache.keys[layer][:, :, start:end] = keys
        self.cache.values[layer][:, :, start:end] = values
        return self.cache.keys[layer][:, :, :end], self.cache.values[layer][:, :, :end]


class ReferenceEngine:
    """Sub-layers of any known family."""

    name = "reference"
    result_is_borrowed = False

    def __init__(self, model: Any, family: Family, cache: KVCache) -> None:
        self.parts = parts_of(model)
        self.kernels: dict[str, str] = {}
        self._view = _LayerView(cache)
        self.sublayers: list[Sublayer] = []
        for index, (attention, mlp) in enumerate(self.parts.layers):
            self.sublayers += [
                self._attention(attention, family.window(model.config, index)),
                self._mlp(mlp),
            ]

    def notes(self) -> list[str]:
        return []

    def whole_pass(self, hidden: Tensor, metadata: AttentionMetadata) -> None:
        """Sub-layers run one by one."""

    def allocated(self, rotary: dict[torch.device, RotaryCache]) -> "ReferenceEngine":
        return self

    def _attention(self, parts: AttentionParts, window: int | None) -> Sublayer:
        def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
            self._view.metadata = metadata
            mask = metadata.mask(window)
            tables = metadata.tables
            out, _ = parts.module(
                hidden_states=parts.norm(hidden[None]),
                position_embeddings=(
                    tables.cos[metadata.index][None],
                    tables.sin[metadata.index][None],
                ),
                attention_mask=None if mask is None else mask[None, None],
                past_key_values=self._view,
            )
            result: Tensor = hidden + out[0]
            return result

        return run

    def _mlp(self, parts: MlpParts) -> Sublayer:
        def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
            result: Tensor = hidden + parts.module(parts.norm(hidden[None]))[0]
            return result

        return run

    def embed(self, tokens: Tensor) -> Tensor:
        rows: Tensor = self.parts.embedding(tokens)
        return rows

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.parts.head(self.parts.norm(hidden[None]))[0]
        return logits
