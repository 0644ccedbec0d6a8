"""What graphs hold for guided drafts: a side cache with its tables, and queries that are left."""

from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs.work import Attention
from skipbench.lm.metadata import AttentionMetadata, RotaryCache

BESIDE, LEAVES = "beside", "leaves"
"""Uses of a pass: over the chosen rows of a guided draft, and one whose queries are left."""


class Guided:
    """Of one device, for one cache."""

    def __init__(self, cache: KVCache) -> None:
        self.side, self._rows = cache, list[Tensor]()
        self._left: dict[int, dict[int, Tensor]] = {}
        """Queries [R, H, d] by row count R and layer."""

    @torch.inference_mode(False)
    def enter(self, side: KVCache, tables: RotaryCache, *captured: dict[Any, Any]) -> None:
        """Takes a side cache; what was captured over it before it was made anew goes."""
        if self._rows is side.rows:
            return
        for kept in captured:
            for key in [key for key in kept if key[3] == BESIDE]:
                del kept[key]
        self.side, self._rows, self._shift = side, side.rows, -1
        self.columns = torch.arange(len(side.rows[0]), device=tables.device)
        self._rope = tables.rope
        empty = torch.zeros_like(self._rope[0][:1]).repeat(side.capacity, 1, 1)
        self.rope = empty, empty.clone()
        """Cosine and sine of the side cache's rows: those of their positions in the text."""

    def load(self, metadata: AttentionMetadata, rows: int) -> None:
        """Turns the tables to the positions of a pass, or gives it what the graphs of its row count
        leave.
        """
        if metadata.side is not None and metadata.shift != self._shift:
            self._shift, at = metadata.shift, metadata.start
            for own, every in zip(self.rope, self._rope, strict=True):
                ahead = every[at + metadata.shift :][: len(own) - at]
                own[at : at + len(ahead)] = ahead
        if metadata.queries is not None:
            left = {layer: query[: metadata.rows] for layer, query in self._left[rows].items()}
            metadata.queries.update(left)

    @torch.inference_mode(False)
    def arguments(self, rows: int, use: str, attention: Attention) -> dict[str, Any]:
        """Those of an attention's work that a use adds."""
        layer, cache = attention.index, attention.cache
        if use == BESIDE:
            return {"rows": self._rows[layer], "whole": True}
        left = self._left.setdefault(rows, {})
        if use == LEAVES and layer not in left:
            left[layer] = cache.rows[layer].new_zeros(rows, attention.heads, cache.head_dim)
        return {"left": left[layer]} if use == LEAVES else {}
