"""Sets of sub-layers that are used again and again: each gets a graph of its own."""

from collections.abc import Callable
from typing import NamedTuple

from skipbench.lm.cuda_graphs.capture import Replay

USES = 8  # of a set before it is captured
KEPT = 32  # the sets used last, by row count and bucket


class SetKey(NamedTuple):
    """A set over one row count and bucket; a `fresh` pass makes its masks and tables first."""

    rows: int
    size: int
    chain: bool
    fresh: bool
    chosen: tuple[int, ...]


class SetGraphs:
    """Counts how often sets are used, and holds the graphs of few."""

    def __init__(self) -> None:
        self.used: dict[SetKey, tuple[int, Replay | None]] = {}

    def replay(self, key: SetKey, capture: Callable[[], Replay | None]) -> Replay | None:
        """The graph of a set, captured at its `USES`-th use; `None` before."""
        uses, replay = self.used.pop(key, (0, None))
        if replay is None and uses + 1 >= USES:
            replay = capture()
        self.used[key] = uses + 1, replay
        if len(self.used) > KEPT:
            del self.used[next(iter(self.used))]
        return replay

    def captured(self) -> list[SetKey]:
        """The sets that have a graph."""
        return [key for key, (_, replay) in self.used.items() if replay is not None]

    def enter(self, key: SetKey, capture: Callable[[], Replay | None]) -> None:
        """Captures a set ahead of its first use, where there is room."""
        if self.used.get(key, (0, None))[1] is None and len(self.used) < KEPT:
            self.used[key] = USES, capture()
