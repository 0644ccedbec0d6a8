"""Chances of paths of drafted tokens, counted while decoding."""

import math
from collections.abc import Sequence

from skipbench.config.configurable import Stateful

LEAST = 1e-9  # product of chances that is told from 0


class Calibration(Stateful):
    """Corrects products of chances along a path by how often such paths were accepted.

    A tree holds the paths that look best, so that their chances are overestimated more often than
    not; tokens of one path are not independent, either.
    """

    WIDTH = 0.5  # of a bin of -ln(p)
    BINS = 12
    DECAY = 0.999
    WEIGHT = 10.0  # accepted paths that the factor 1 of a bin counts for

    carried = ("sums",)

    def __init__(self) -> None:
        self.sums = [(0.0, 0.0)] * self.BINS
        """Accepted and expected paths per bin."""

    def _bin(self, p: float) -> int:
        at = int(-math.log(p) / self.WIDTH) if p > LEAST else self.BINS
        return at if at < self.BINS else self.BINS - 1

    def __call__(self, p: float) -> float:
        """The chance of a path whose product is `p`."""
        accepted, expected = self.sums[self._bin(p)]
        chance = p * (accepted + self.WEIGHT) / (expected + self.WEIGHT)
        return chance if chance < 1.0 else 1.0

    def count(self, products: Sequence[float], accepted: Sequence[int]) -> None:
        """Counts verified paths by their products, and which of them were accepted."""
        hits, sums, decay = set(accepted), self.sums, self.DECAY
        for node, p in enumerate(products):
            before, expected = sums[at := self._bin(p)]
            sums[at] = before * decay + (node in hits), expected * decay + p
