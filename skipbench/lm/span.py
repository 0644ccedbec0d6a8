"""`Span`: which rows one forward pass runs, at which positions, and what each row may see."""

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Span:
    """`T` rows, written to the cache rows `start .. start + T - 1`.

    Every row sees the committed rows `0 .. visible - 1`, itself, and its ancestors among the rows of the span.
    Rows between `visible` and `start` are scratch of somebody else and stay unseen.
    """

    start: int
    visible: int
    positions: tuple[int, ...] | range
    """Position of each row in the text, counted from 0."""
    parent: tuple[int, ...] | None = None
    """Index of each row's parent within the span, -1 for none, parents first; `None` for a chain."""
    verifies: bool = False
    """Whether the rows decide what is emitted: then a strict engine runs each as if it were alone."""

    @property
    def rows(self) -> int:
        return len(self.positions)

    @property
    def end(self) -> int:
        """First cache row behind the span; attention reads no further."""
        return self.start + len(self.positions)

    @property
    def contiguous_chain(self) -> bool:
        """Whether row `i` sees exactly the cache rows `0 .. start + i`."""
        return (self.parent is None or self.rows == 1) and self.start == self.visible

    @classmethod
    def chain(cls, start: int, rows: int, visible: int | None = None) -> "Span":
        """Rows that follow one another in the text; behind `visible` committed rows if they are not kept at `start`."""
        base = start if visible is None else visible
        return cls(start, base, range(base, base + rows))

    @classmethod
    def tree(cls, start: int, parent: tuple[int, ...]) -> "Span":
        """A token tree whose roots follow the committed row `start - 1`."""
        depth: list[int] = []
        for p in parent:
            depth.append(depth[p] + 1 if p >= 0 else 0)
        return cls(start, start, tuple(start + d for d in depth), parent)

    @classmethod
    def branches(cls, start: int, visible: int, count: int, rows: int = 1) -> "Span":
        """`count` alternatives for the text behind `visible` committed rows, a chain of `rows` each, kept from `start` on.

        They share the committed rows and do not see one another.
        """
        parent = tuple(-1 if row == 0 else branch * rows + row - 1 for branch in range(count) for row in range(rows))
        return cls(start, visible, tuple(range(visible, visible + rows)) * count, parent)

    def verified(self) -> "Span":
        """The same rows as those of a verification."""
        return replace(self, verifies=True)

    def family(self) -> NDArray[np.bool_]:
        """[T, T], true where a row may see another: itself and its ancestors among the rows of the span. Not to be written to."""
        return _family(self.rows, self.parent)


@functools.lru_cache(maxsize=256)
def _family(rows: int, parent: tuple[int, ...] | None) -> NDArray[np.bool_]:
    """Kept by shape: a drafter makes the same few trees again and again."""
    if parent is None:
        return np.tri(rows, dtype=bool)
    sees = np.eye(rows, dtype=bool)
    for row, above in enumerate(parent):
        if above >= 0:
            sees[row] |= sees[above]
    return sees
