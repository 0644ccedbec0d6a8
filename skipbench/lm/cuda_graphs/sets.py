"""Sets of sub-layers that are used again and again: each gets a graph of its own."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from skipbench.lm.cuda_graphs.capture import Replay

USES = 8  # of a set before it is captured
KEPT = 32  # the sets used last, by row count and bucket: of those with a graph, and of others
T = TypeVar("T")


class SetKey(NamedTuple):
    """A set over one row count and bucket; a `fresh` pass makes its masks and tables first."""

    rows: int
    size: int
    own: bool
    fresh: bool
    chosen: tuple[int, ...]


class SetGraphs:
    """Counts how often sets are used, and holds the graphs of few."""

    def __init__(self) -> None:
        self.uses: dict[SetKey, int] = {}
        self.graphs: dict[SetKey, Replay] = {}

    def replay(self, key: SetKey, capture: Callable[[], Replay | None]) -> Replay | None:
        """The graph of a set, captured at its `USES`-th use; `None` before."""
        uses, replay = self.uses.pop(key, 0) + 1, self.graphs.pop(key, None)
        if replay is None and uses >= USES:
            replay = capture()
        if replay is None:
            _enter(self.uses, key, uses)
        else:
            _enter(self.graphs, key, replay)
        return replay

    def enter(self, key: SetKey, capture: Callable[[], Replay | None]) -> None:
        """Captures a set ahead of its first use, where there is room."""
        if key not in self.graphs and len(self.graphs) < KEPT:
            self.uses[key] = USES - 1
            self.replay(key, capture)


def _enter(kept: dict[SetKey, T], key: SetKey, value: T) -> None:
    """As the last of `KEPT`: the first goes."""
    kept[key] = value
    if len(kept) > KEPT:
        del kept[next(iter(kept))]
