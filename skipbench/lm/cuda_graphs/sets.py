"""Sets of sub-layers that are used again and again: each gets a graph of its own."""

from collections.abc import Callable

from skipbench.lm.cuda_graphs.capture import Replay

USES = 8  # of a set before it is captured
KEPT = 32  # the sets used last, by row count and bucket


class SetGraphs:
    """Counts how often sets are used, and holds the graphs of few."""

    def __init__(self) -> None:
        self.used: dict[object, tuple[int, Replay | None]] = {}

    def replay(self, key: object, capture: Callable[[], Replay | None]) -> Replay | None:
        """The graph of a set, captured at its `USES`-th use; `None` before."""
        uses, replay = self.used.pop(key, (0, None))
        if replay is None and uses + 1 >= USES:
            replay = capture()
        self.used[key] = uses + 1, replay
        if len(self.used) > KEPT:
            del self.used[next(iter(self.used))]
        return replay
