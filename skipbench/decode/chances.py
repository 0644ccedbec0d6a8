"""Chances that drafted tokens are accepted, counted while decoding."""

import math
from collections.abc import Sequence
from typing import Any


class Counters:
    """One chance per kind of draft token: how many of them were accepted, where their parent was.

    `p = (hits + weight * prior) / (tries + weight)`; with every try of a kind, what was counted
    before loses `1 - decay` of its weight.
    """

    def __init__(self, priors: Sequence[float], weight: float = 16.0, decay: float = 0.998) -> None:
        """`priors`: the chance of every kind before it was tried; `weight`: tries they count
        for.
        """
        self._priors, self._weight, self._decay = list(priors), weight, decay
        self._counts: dict[int, list[float]] = {}
        self.p = list(priors)
        """The present chance of every kind."""

    def update(self, kind: int, hit: bool) -> None:
        """A token of `kind` was tried."""
        counts = self._counts.setdefault(kind, [0.0, 0.0])
        counts[0] = counts[0] * self._decay + hit
        counts[1] = counts[1] * self._decay + 1.0
        self._estimate(kind)

    def _estimate(self, kind: int) -> None:
        self.p[kind] = self.given_prior(kind, self._priors[kind])

    def given_prior(self, kind: int, prior: float) -> float:
        """The chance of a kind by what was counted, from another prior than its own."""
        hits, tries = self._counts.get(kind, (0.0, 0.0))
        return (hits + self._weight * prior) / (tries + self._weight)

    @property
    def state_dict(self) -> dict[str, Any]:
        """Hits and tries by kind."""
        return {str(kind): list(counts) for kind, counts in self._counts.items()}

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        self._counts = {int(kind): list(counts) for kind, counts in state.items()}
        self.p = list(self._priors)
        for kind in self._counts:
            self._estimate(kind)


class Calibration:
    """Corrects products of chances along a path by how often such paths were accepted.

    A tree holds the paths that look best, so that their chances are overestimated more often than
    not; tokens of one path are not independent, either.
    """

    WIDTH = 0.5  # of a bin of -ln(p)
    BINS = 12
    DECAY = 0.999

    def __init__(self, weight: float = 10.0) -> None:
        """`weight`: accepted paths that the factor 1 of a bin counts for."""
        self._weight = weight
        self._sums = [[0.0, 0.0] for _ in range(self.BINS)]  # accepted, and what was expected

    def _bin(self, p: float) -> int:
        return min(self.BINS - 1, int(-math.log(max(p, 1e-9)) / self.WIDTH))

    def __call__(self, p: float) -> float:
        """The chance of a path whose product is `p`."""
        accepted, expected = self._sums[self._bin(p)]
        return min(1.0, p * (accepted + self._weight) / (expected + self._weight))

    def update(self, p: float, accepted: bool) -> None:
        """A path of product `p` was verified."""
        sums = self._sums[self._bin(p)]
        sums[0] = sums[0] * self.DECAY + accepted
        sums[1] = sums[1] * self.DECAY + p

    @property
    def state_dict(self) -> list[list[float]]:
        """Accepted and expected paths by bin."""
        return [list(sums) for sums in self._sums]

    @state_dict.setter
    def state_dict(self, state: list[list[float]]) -> None:
        self._sums = [list(sums) for sums in state]
