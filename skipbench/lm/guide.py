"""`Guide`: the rows of the cache that a guided draft reads, chosen by what verification attended to.

The queries of the rows that a verification accepted say which rows of the text matter now. Once per
round, before the first draft step, each key head's `window` rows with the largest sums of attention
are copied into a small cache beside the first `SINKS`; draft steps run over that cache alone, where
their own keys and values follow. Keys are cached behind their rotation, so a copy needs no new one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from skipbench.draft_plan import SINKS
from skipbench.lm.cache import KVCache
from skipbench.lm.layer import AttentionParts
from skipbench.lm.metadata import AttentionMetadata

ROOM = 64  # draft steps that fit behind the chosen rows; later ones read a plain window
ROWS = 8  # last rows of a prompt, or accepted ones of a round, whose queries choose
RECENT = 4  # of a window, every so many-th part is of the last rows, whatever they get


class Guide:
    """The choice belongs to one request and one length of its text: it is made anew for others."""

    def __init__(self, cache: KVCache, attentions: Sequence[AttentionParts]) -> None:
        self._cache, self._attentions = cache, attentions
        self.side = KVCache(cache.devices, cache.kv_heads, cache.head_dim, cache.dtype)
        """The chosen rows, then those of the draft."""
        self._noted: dict[int, Tensor] = {}
        self._queries: dict[int, Tensor] = {}
        self._of = self._chosen = (-1, -1, -1)
        """Switches of the cache and committed rows that the queries, and the chosen rows, belong
        to, and how many those are."""

    def note(self) -> dict[int, Tensor]:
        """Where a pass leaves its queries, [T, H, d] by layer."""
        self._noted = {}
        return self._noted

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps the queries of these rows of the pass that `note` was for; they are committed."""
        if not self._noted:
            return
        last = list(rows[-ROWS:])
        self._queries = {layer: query[last] for layer, query in self._noted.items()}
        self._of, self._noted = (self._cache.switches, self._cache.length, 0), {}
        self._chosen = (-1, -1, -1)

    def over(self, metadata: AttentionMetadata, window: int) -> AttentionMetadata:
        """The same rows over the chosen ones; in a plain window where none were chosen for them:
        they do not follow the verified text, no verification left its queries, or there is no room.
        """
        rows, (switches, length) = metadata.token_rows, (self._cache.switches, self._cache.length)
        count = SINKS + window
        ahead = rows.start - length
        known = self._of[:2] == (switches, length) and rows.contiguous_chain
        if not known or ahead < 0 or ahead + rows.rows > ROOM:
            return metadata.windowed(window)
        if length <= count:
            return metadata
        if self._chosen != (switches, length, count):
            self._choose(length, count)
            self._chosen = switches, length, count
        return metadata.beside(self.side, count + ahead)

    def _choose(self, length: int, count: int) -> None:
        """Copies `count` rows of each layer and key head."""
        self.side.spare = self._cache.spare
        self.side.allocate(-(-(count + ROOM) // 64) * 64)
        for layer, query in self._queries.items():
            rows = self._cache.rows[layer][:length]
            index = chosen_rows(query, rows, count, self._attentions[layer])
            self.side.rows[layer][:count] = rows.gather(0, index)


def chosen_rows(query: Tensor, rows: Tensor, count: int, attention: AttentionParts) -> Tensor:
    """Numbers [count, 2 KV, d] of the chosen rows, for keys and values of every head alike: the
    first `SINKS`, the last ones, and those with the most attention.

    Args:
        query: [T, H, d] at their positions.
        rows: [N, 2 KV, d], those committed.
    """
    (length, both, d), kv = rows.shape, rows.shape[1] // 2
    keys = rows[:, :kv].permute(1, 2, 0)  # [KV, d, N]
    asked = query.view(len(query), kv, -1, d).transpose(0, 1).reshape(kv, -1, d)
    score = (torch.matmul(asked, keys).float() * attention.scale).softmax(-1).sum(1)
    if attention.window is not None:
        score[:, : max(0, length - attention.window)] = -1.0
    score[:, :SINKS] = torch.inf
    score[:, length - (count - SINKS) // RECENT :] = torch.inf
    index = score.topk(count, sorted=False).indices
    return index.t().repeat(1, 2)[..., None].expand(count, both, d)
