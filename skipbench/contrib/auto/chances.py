"""Chances that drafted tokens are accepted, counted while decoding."""

import math
from collections.abc import Sequence

from skipbench.config.configurable import Stateful

UNTRIED = 0.0, 0.0  # hits and tries of a kind
LEAST = 1e-9  # product of chances that is told from 0


class Counters(Stateful):
    """One chance per kind of draft token: how many of them were accepted, where their parent was.

    `p = (hits + weight * prior) / (tries + weight)`; every try of a kind multiplies the weight of
    its earlier ones by `decay`.
    """

    def __init__(self, priors: Sequence[float], weight: float = 16.0, decay: float = 0.998) -> None:
        """`priors`: the chance of every kind before a try; `weight`: tries they count for."""
        self._priors, self._weight, self._decay = priors, weight, decay
        self._counts: dict[int, tuple[float, float]] = {}

    def update(self, kind: int, hit: bool) -> None:
        """Counts a try of `kind`."""
        hits, tries = self._counts.get(kind, UNTRIED)
        self._counts[kind] = hits * self._decay + hit, tries * self._decay + 1.0

    def chance(self, kind: int, prior: float | None = None) -> float:
        """The present chance of a kind; `prior` replaces its own."""
        hits, tries = self._counts.get(kind, UNTRIED)
        prior = self._priors[kind] if prior is None else prior
        return (hits + self._weight * prior) / (tries + self._weight)

    def state_dict(self) -> dict[str, list[float]]:
        return {str(kind): list(counts) for kind, counts in self._counts.items()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self._counts = {int(kind): (hits, tries) for kind, (hits, tries) in state.items()}


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
