"""`AttentionMetadata`: rotary tables and masks of one `TokenRows`, made once per pass."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import upload
from skipbench.lm.layer import Modules
from skipbench.lm.rows import TokenRows

ALIGNED = 8  # elements; 16 bytes of half precision
BAND_ROWS = 64  # chains of up to this many rows take their mask as a view of one prepared band


@dataclass
class RotaryCache:
    """Rotary tables and the causal band of one device, for every position up to `positions`."""

    kinds: dict[str, tuple[Tensor, Tensor]]
    """Cosine and sine [P, d] in the model's dtype, by kind of layer; most models have one, and one
    without rotary positions none."""
    dtype: torch.dtype
    device: torch.device
    positions: int

    @functools.cached_property
    def rope(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine [P, 1, d] of the first kind; the sine has the sign of `rotate_half`."""
        cos, sin = next(iter(self.kinds.values()))
        half = sin.shape[1] // 2
        sin = torch.cat((-sin[:, :half], sin[:, half:]), -1)
        return cos[:, None].contiguous(), sin[:, None]

    @functools.cached_property
    def band(self) -> Tensor:
        return self._causal(BAND_ROWS, self.positions)

    def chain_mask(self, start: int, rows: int) -> Tensor:
        """Additive mask [rows, start + rows] of a chain after `start` committed rows."""
        if rows > BAND_ROWS:
            return self._causal(rows, start)
        return self.band[:rows, self.positions - start : self.positions + rows]

    def _causal(self, rows: int, start: int) -> Tensor:
        shape = rows, start + rows
        blocked = torch.full(shape, float("-inf"), dtype=self.dtype, device=self.device)
        return blocked.triu_(start + 1)


class AttentionMetadata:
    """Positions, rotary tables and masks of one `TokenRows` on one device, and by `on` on others.

    Attributes:
        start, end: first cache row written, and the first one after the rows.
        index: positions of the rows, as an index into the rotary tables.
        steps: `bit_exact.steps`, once they are made.
    """

    def __init__(
        self,
        token_rows: TokenRows,
        tables: RotaryCache,
        by_device: dict[torch.device, RotaryCache] | None = None,
    ) -> None:
        """
        Args:
            by_device: the tables of all devices of the model.
        """
        self.token_rows, self.tables, self._by_device = token_rows, tables, by_device or {}
        self.start, self.end, self.rows = token_rows.start, token_rows.end, token_rows.rows
        positions = token_rows.positions
        self.index: slice | Tensor = (
            slice(positions.start, positions.stop)
            if isinstance(positions, range)
            else upload(torch.tensor(positions), tables.device)
        )
        self.steps: list[Any] | None = None
        self._masks: dict[tuple[int | None, int], Tensor | None] = {}
        self._others: dict[torch.device, AttentionMetadata] = {}

    def on(self, device: torch.device) -> "AttentionMetadata":
        """The metadata of the same rows on another device."""
        if device == self.tables.device:
            return self
        if device not in self._others:
            of = self.token_rows, self._by_device[device], self._by_device
            self._others[device] = AttentionMetadata(*of)
        return self._others[device]

    @functools.cached_property
    def parents(self) -> Tensor | None:
        """Parent of every row, [T] of int32 on the host; `None` where row `i` sees all rows up to
        `start + i`.
        """
        if self.token_rows.contiguous_chain:
            return None
        above = self.token_rows.parent
        return torch.tensor(range(-1, self.rows - 1) if above is None else above, dtype=torch.int32)

    @functools.cached_property
    def rope(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine [T, 1, d] of the rows, as `RotaryCache.rope`."""
        cos, sin = self.tables.rope
        if isinstance(self.index, slice):
            return cos[self.index], sin[self.index]
        return cos.index_select(0, self.index), sin.index_select(0, self.index)

    @property
    def positions(self) -> Tensor:
        """Position of every row, [T]."""
        if isinstance(self.index, Tensor):
            return self.index
        return torch.arange(self.index.start, self.index.stop, device=self.tables.device)

    def within(self, window: int | None) -> bool:
        """True if a window of this many positions hides none from a row."""
        return window is None or max(self.token_rows.positions) < window

    def mask(self, window: int | None, group: int = 1) -> Tensor | None:
        """Additive mask [group * T, end], the rows of one query head after the other; `None` when
        one row sees everything or a square chain is causal. Group 0 is the mask before `_repeated`.

        On a GPU it is a part of a tensor whose rows are longer: the memory-efficient kernel wants
        rows that start at multiples of `ALIGNED` elements. It would copy others at every layer, and
        refuses a view of the band whose address is odd.
        """
        key = None if self.within(window) else window, group
        if key not in self._masks:
            mask = self.mask(window, 0) if group else self._make_mask(key[0])
            self._masks[key] = mask if mask is None or not group else self._repeated(mask, group)
        return self._masks[key]

    def causal_mask(self, window: int | None) -> Tensor:
        """`mask`, or where that is `None` the equivalent causal mask."""
        mask = self.mask(window)
        if mask is None:  # without a window, a chain from row 0 or a single row
            mask = self._repeated(self.tables.chain_mask(self.start, self.rows), 1)
            self._masks[None, 1] = mask
        return mask

    def _repeated(self, mask: Tensor, group: int) -> Tensor:
        if mask.device.type == "cpu":
            return mask if group == 1 else torch.cat([mask] * group)
        rows, end = mask.shape
        wide = mask.new_zeros(group, rows, -(-end // ALIGNED) * ALIGNED)
        wide[..., :end] = mask
        return wide.flatten(0, 1)[:, :end]

    def _make_mask(self, window: int | None) -> Tensor | None:
        """The mask [T, end] of one query head."""
        token_rows, device = self.token_rows, self.tables.device
        if window is None and token_rows.contiguous_chain:
            if token_rows.rows == 1 or token_rows.start == 0:
                return None
            return self.tables.chain_mask(token_rows.start, token_rows.rows)
        # Made on the device: of a tree only what its rows see of one another is uploaded.
        shape = (token_rows.rows, token_rows.end)
        mask = torch.full(shape, float("-inf"), dtype=self.tables.dtype, device=device)
        mask[:, : token_rows.context_len] = 0.0
        sees = upload(torch.from_numpy(token_rows.tree_mask()), device)
        mask[:, token_rows.start :].masked_fill_(sees, 0.0)
        if window is None:
            return mask
        index, columns = self.positions, torch.arange(token_rows.end, device=device)
        columns[token_rows.start :] = index
        behind = index[:, None] - columns
        return mask.masked_fill_(behind >= window, float("-inf"))


def rotary_cache(
    modules: Modules, positions: int, dtype: torch.dtype, device: torch.device, limit: int | None
) -> RotaryCache:
    """The tables of every kind of layer, from the model's own rotary module.

    Args:
        limit: positions from here on get the last one's angles; nothing reads them.
    """
    tables: dict[str, tuple[Tensor, Tensor]] = {}
    for kind in dict.fromkeys(a.rotary_kind for a, _ in modules.layers):
        if kind is not None and modules.rotary is not None:
            index = torch.arange(positions, device=next(modules.rotary.buffers()).device)[None]
            if limit is not None:
                index = index.clamp(max=limit - 1)
            empty = torch.empty(0, dtype=dtype, device=index.device)
            cos, sin = modules.rotary(empty, index, *filter(None, [kind]))
            tables[kind] = cos[0].to(device), sin[0].to(device)
    return RotaryCache(tables, dtype, device, positions)
