"""`Guide`: the rows of the cache that a guided draft reads, those that verification read most.

The queries of the last accepted row of a verification say which rows of the text matter now. Once
per round, before the first draft step, the rows to which the query heads of a key head pay most
attention are copied into a small cache, with the first `SINKS` and the newest ones; draft steps run
over that cache alone, where their own keys and values follow. Keys are cached as they are rotated,
so a copy needs nothing else. More rows' queries chose no better on SmolLM2-135M.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from skipbench.draft_plan import SINKS, DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import Engine
from skipbench.lm.layer import AttentionParts
from skipbench.lm.metadata import QUERIES, AttentionMetadata

ROOM = 64  # draft steps that fit behind the chosen rows; later ones read a plain window


class Guide:
    """A choice belongs to one request and length of its text, and is lost with that."""

    def __init__(self, cache: KVCache, attentions: Sequence[AttentionParts]) -> None:
        self._cache, self._attentions = cache, attentions
        self.side = KVCache(cache.devices, cache.kv_heads, cache.head_dim, cache.dtype)
        """The chosen rows, then those of the draft."""
        self._noted: dict[int, Tensor] = {}
        self._queries: dict[int, Tensor] = {}
        self._of = (-1, -1)
        """The turn (`KVCache.switches`) and the number of committed rows that those are of."""
        self._count = 0  # of the chosen rows, before any are

    def asked(self, metadata: AttentionMetadata, guides: bool) -> AttentionMetadata:
        """The metadata of a pass that leaves its queries here if it `guides`."""
        self._noted = {}
        metadata.queries = self._noted if guides else None
        return metadata

    def keep(self, row: int) -> None:
        """Keeps the queries of a row of the pass that was asked: the last committed one."""
        noted, self._noted = self._noted, {}
        self._queries = {i: query[min(row, QUERIES - 1)].clone() for i, query in noted.items()}
        self._of, self._count = (self._cache.switches, self._cache.length), 0

    def in_window(
        self, metadata: AttentionMetadata, plan: DraftPlan | None, engine: Engine
    ) -> AttentionMetadata:
        """The same rows in the plan's window: a guided one over the chosen rows, or a plain one
        where none were chosen for them: they do not follow the verified text, no verification left
        its queries, or there is no room. Raises SkipbenchError where an engine has none.
        """
        if plan is None or plan.window is None:
            return metadata
        rows, length = metadata.token_rows, self._cache.length
        count, ahead = SINKS + plan.window, rows.start - length
        if plan.guided and not engine.guides:
            raise SkipbenchError(
                f"engine={engine.name} has no guided windows; use engine=fused, or drafts with "
                "method.kv_guided=false and window:N"
            )
        known = bool(self._queries) and self._of == (self._cache.switches, length)
        known &= plan.guided and rows.contiguous_chain
        if not known or ahead < 0 or ahead + rows.rows > ROOM:
            return metadata.windowed(plan.window)
        if length <= count:
            return metadata
        if self._count != count:
            self._choose(length, count, engine.copy_most_read)
            self._count = count
        return metadata.beside(self.side, count + ahead)

    def _choose(self, length: int, count: int, copy: Callable[..., None]) -> None:
        """Copies `count` of the committed rows, for each layer and key head."""
        self.side.spare = self._cache.spare
        self.side.allocate(-(-(count + ROOM) // 64) * 64)
        for layer, query in self._queries.items():
            rows, out = self._cache.rows[layer][:length], self.side.rows[layer][:count]
            of = self._attentions[layer]
            copy(query, rows, out, of.scale, of.window)
