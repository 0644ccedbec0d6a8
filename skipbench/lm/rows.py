"""`TokenRows`: the rows of one forward pass, their positions, and the rows that each may see."""

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenRows:
    """`T` rows, written to the cache rows `start .. start + T - 1`.

    Every row sees the committed rows `0 .. context_len - 1`, itself, and its ancestors among these
    rows. Rows between `context_len` and `start` are scratch of another pass and stay unseen.
    """

    start: int
    context_len: int
    positions: tuple[int, ...] | range  # position of each row in the text, counted from 0
    parent: tuple[int, ...] | None = None
    """Index of each row's parent among the rows, -1 for none, parents first; `None` for a chain."""
    verifies: bool = False
    """The rows decide the emitted tokens: a strict engine gives each the bits that it has alone."""
    padding: int = 0
    """Rows at the end that stand for no token."""

    @property
    def rows(self) -> int:
        return len(self.positions)

    @property
    def end(self) -> int:
        """First cache row after the last one; attention reads no further."""
        return self.start + len(self.positions)

    @property
    def contiguous_chain(self) -> bool:
        """True if row `i` sees exactly the cache rows `0 .. start + i`."""
        return (self.parent is None or self.rows == 1) and self.start == self.context_len

    @classmethod
    def chain(cls, start: int, rows: int, context_len: int | None = None) -> "TokenRows":
        """Rows that follow one another in the text, after `context_len` (default: `start`) rows."""
        base = start if context_len is None else context_len
        return cls(start, base, range(base, base + rows))

    @classmethod
    def tree(cls, start: int, parent: tuple[int, ...]) -> "TokenRows":
        """A token tree whose roots follow the committed row `start - 1`."""
        depth: list[int] = []
        for p in parent:
            depth.append(depth[p] + 1 if p >= 0 else 0)
        return cls(start, start, tuple(start + d for d in depth), parent)

    @classmethod
    def branches(cls, start: int, context_len: int, count: int, rows: int = 1) -> "TokenRows":
        """`count` alternative continuations of `context_len` committed rows, a chain of `rows`
        each, written from `start` on. They do not see one another.
        """
        parent = tuple(row - 1 if row % rows else -1 for row in range(count * rows))
        positions = tuple(range(context_len, context_len + rows)) * count
        return cls(start, context_len, positions, parent)

    def paths(self) -> list[list[int]]:
        """Ancestors of each row, first to last, then itself."""
        paths: list[list[int]] = []
        for row in range(self.rows):
            parent = row - 1 if self.parent is None else self.parent[row]
            paths.append([*(paths[parent] if parent >= 0 else []), row])
        return paths

    def verified(self) -> "TokenRows":
        """The same rows as those of a verification."""
        return replace(self, verifies=True)

    def padded(self, step: int) -> "TokenRows":
        """The rows with others behind them, as many as make their number a multiple of `step`; no
        row sees those, and their keys and values go to cache rows behind the pass. Unchanged with
        step 0, and a prompt or longer chain that is not verified.
        """
        short = self.contiguous_chain and self.start > 0 and self.rows < step
        if not step or not (short or self.verifies) or (missing := -self.rows % step) == 0:
            return self
        if self.contiguous_chain:
            positions: tuple[int, ...] | range = range(self.start, self.end + missing)
            return replace(self, positions=positions, parent=None, padding=missing)
        parent = range(-1, self.rows - 1) if self.parent is None else self.parent
        return replace(
            self,
            positions=(*self.positions, *(self.context_len,) * missing),
            parent=(*parent, *(-1,) * missing),
            padding=missing,
        )

    def tree_mask(self) -> NDArray[np.bool_]:
        """[T, T], true where a row may see another: itself and its ancestors. Not to be written."""
        return _tree_mask(self.rows, self.parent)


@functools.lru_cache(maxsize=256)
def _tree_mask(rows: int, parent: tuple[int, ...] | None) -> NDArray[np.bool_]:
    """Cached by shape: a drafter makes the same few trees again and again."""
    if parent is None:
        return np.tri(rows, dtype=bool)
    sees = np.eye(rows, dtype=bool)
    for row, above in enumerate(parent):
        if above >= 0:
            sees[row] |= sees[above]
    return sees
