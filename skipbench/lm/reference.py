"""`engine=reference`: calls the Hugging Face modules one by one, with our own cache and masks."""

from typing import Any

import torch
from torch import Tensor

from skipbench.lm.bit_exact import MOST, rows_one_by_one
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import Engine, Sublayer
from skipbench.lm.families import modules_of
from skipbench.lm.layer import AttentionModules, Family, MlpModules, Modules, text_config
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.rows import TokenRows


class _LayerView:
    """The cache for a Hugging Face attention module."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.metadata: AttentionMetadata | None = None

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> list[Tensor]:
        """Writes the rows [1, KV, T, d] and returns all up to their end, [1, KV, end, d]."""
        assert self.metadata is not None
        start, end = self.metadata.start, self.metadata.end
        held = self.cache.keys[layer], self.cache.values[layer]
        for rows, new in zip(held, (keys, values), strict=True):
            rows[:, :, start:end] = new
        return [rows[:, :, :end] for rows in held]


class ReferenceEngine(Engine):
    """Sub-layers of any family: `x + scale * after(module(before(x)))` by Hugging Face's modules.

    In a family whose attention and MLP stand side by side, the MLP reads the layer's input: the
    attention sub-layer hands it on to the MLP that takes its result. Where attention is left out,
    or an MLP is run on a state that is not that result, it reads the state that it is given.
    """

    name = "reference"

    def __init__(
        self, model: Any, family: Family, cache: KVCache, note: str = "", strict: bool = False
    ) -> None:
        """
        Args:
            note: the reason why this engine replaces another.
            strict: verified rows pass attention one by one, with the very calls of one row, and
                other modules `MOST` at once.
        """
        super().__init__(model, cache, filter(None, [note]))
        self.strict = strict
        self.modules, self.family = modules_of(model), family
        self._view = _LayerView(cache)
        config = text_config(model.config)
        # sdpa takes a missing mask over several rows for a causal one, the others do not
        self._needs_mask = config._attn_implementation != "sdpa"
        # without a mask Hugging Face leaves grouped heads to the kernel, and of a GPU's only flash
        # has them, which takes no float32: the math kernel would be left
        grouped = config.num_attention_heads > cache.kv_heads
        self._mask_on_gpu = grouped and cache.dtype == torch.float32
        self._handed: tuple[Tensor, Tensor] | None = None
        """Input and result of the attention that ran last, where attention and MLP are parallel."""
        self.sublayers: list[Sublayer] = []
        for index, (attention, mlp) in enumerate(self.modules.layers):
            self.sublayers += [self._attention(attention, index), self._mlp(mlp)]

    def _attention(self, modules: AttentionModules, index: int) -> Sublayer:
        family, window = self.family, modules.window
        needs_mask, on_gpu = self._needs_mask, self._mask_on_gpu

        def attended(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
            self._view.metadata = metadata
            wanted = needs_mask and metadata.rows > 1
            wanted |= on_gpu and metadata.tables.device.type != "cpu"
            mask = metadata.causal_mask(window) if wanted else metadata.mask(window)
            values = {
                "hidden": modules.norm(hidden[None]),
                "rotary": _rotary(modules, metadata),
                "mask": None if mask is None else mask[None, None],
                "positions": metadata.positions[None],
                "cache": self._view,
            }
            out = modules.module(**{name: values[role] for name, role in family.arguments})
            return self._added(hidden, out, modules.after)

        def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
            if self.strict and metadata.rows > 1 and metadata.token_rows.verifies:
                # keys and values of a tree, which its rows take their ancestors' from
                for at in range(0, metadata.rows if metadata.token_rows.parent else 0, MOST):
                    positions = metadata.token_rows.positions[at : at + MOST]
                    rows = TokenRows(metadata.start + at, metadata.start, positions)
                    attended(hidden[at : at + MOST], AttentionMetadata(rows, metadata.tables))
                steps = rows_one_by_one(metadata, self._view.cache.rows[index])
                result = torch.cat([attended(hidden[s.row : s.row + 1], s.alone) for s in steps])
            else:
                result = attended(hidden, metadata)
            if family.parallel:
                self._handed = hidden, result
            return result

        return run

    def _mlp(self, modules: MlpModules) -> Sublayer:
        def added(hidden: Tensor, read: Tensor) -> Tensor:
            return self._added(hidden, modules.module(modules.norm(read[None])), modules.after)

        def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
            handed, self._handed = self._handed, None
            read = handed[0] if handed is not None and hidden is handed[1] else hidden
            if self.strict and metadata.token_rows.verifies:
                return torch.cat([*map(added, torch.split(hidden, MOST), torch.split(read, MOST))])
            return added(hidden, read)

        return run

    def _added(self, hidden: Tensor, out: Any, after: Any | None) -> Tensor:
        """`hidden` [T, D] plus a module's output, normed and scaled as the family does."""
        if isinstance(out, tuple):
            out = out[0]
        if after is not None:
            out = after(out)
        if self.modules.residual_scale != 1.0:
            out = out * self.modules.residual_scale
        result: Tensor = hidden + out[0]
        return result

    def embed(self, tokens: Tensor) -> Tensor:
        rows: Tensor = self.modules.embedding(tokens)
        return rows if self.modules.embedding_scale == 1.0 else rows * self.modules.embedding_scale

    def head(self, hidden: Tensor) -> Tensor:
        parts = torch.split(hidden, MOST) if self.strict else [hidden]
        logits = [self.modules.head(self.modules.norm(part[None]))[0] for part in parts]
        return scaled_logits(self.modules, logits[0] if len(parts) == 1 else torch.cat(logits))


def scaled_logits(modules: Modules, logits: Tensor) -> Tensor:
    """Scales and caps the product of the head as the family does."""
    if modules.logit_scale != 1.0:
        logits = logits * modules.logit_scale
    cap = modules.logit_cap
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _rotary(modules: AttentionModules, metadata: AttentionMetadata) -> tuple[Tensor, Tensor] | None:
    """Cosine and sine [1, T, d] of the rows; a layer that uses none ignores the first tables."""
    tables, index = metadata.tables.kinds, metadata.index
    if not tables:
        return None
    cos, sin = tables.get(modules.rotary_kind or "") or next(iter(tables.values()))
    return cos[index][None], sin[index][None]
