"""Strategies that choose the next skip set to try; the objective is minimised.

`suggest` is a function of the seed and of the registered values, so that a search can be resumed.
"""

import itertools
import random
from collections.abc import Generator, Iterable
from dataclasses import dataclass

import numpy as np

from skipbench.config.run_config import Search
from skipbench.draft_plan import DraftPlan
from skipbench.search.bayes import suggest_point

Sets = Generator[Iterable[int], float, None]  # of sub-layers; is sent the value of each


@dataclass(frozen=True)
class Space:
    """The skip sets of a model of `layers` layers; with a `ratio`, those of this share of its
    sub-layers.
    """

    layers: int
    ratio: float | None = None

    @property
    def sublayers(self) -> range:
        return range(2 * self.layers)

    @property
    def size(self) -> int | None:
        """How many sub-layers to skip, `None` for any number."""
        return None if self.ratio is None else round(len(self.sublayers) * self.ratio)


class Strategy:
    """Proposes the skip sets that a generator yields, and sends it the value of each."""

    point: list[float] | None = None  # of a Bayesian suggestion, for the trace

    def __init__(self, space: Space, sets: Sets) -> None:
        self.space, self._sets, self._next = space, sets, next(sets, None)

    def suggest(self) -> DraftPlan | None:
        """The next set, or `None` when there is nothing left to try."""
        return None if self._next is None else DraftPlan.of(self.space.layers, self._next)

    def register(self, skip: DraftPlan, value: float) -> None:
        """Learns the value of a set."""
        try:
            self._next = self._sets.send(value)
        except StopIteration:
            self._next = None


def random_sets(space: Space, seed: int) -> Sets:
    """Random sets: `space.size` sub-layers, or each with probability one half."""
    free, size = space.sublayers, space.size
    for tried in itertools.count():
        rng = random.Random(f"{seed}/{tried}")
        yield [s for s in free if rng.random() < 0.5] if size is None else rng.sample(free, size)


class Bayes(Strategy):
    """Bayesian optimisation over one coordinate in [0, 1] per sub-layer, as the published code of
    Self-SD does it.

    A coordinate above 0.5 skips; with a `ratio`, the largest ones do. Upper confidence bound with
    kappa 2.576, Gaussian process with noise `alpha=1e-2`. `rounded` registers the set's corner of
    the cube, to which the value belongs, in place of the raw point. The first `init` sets, one or
    more, are those of `random_sets`.
    """

    def __init__(self, space: Space, seed: int, init: int = 5, rounded: bool = False) -> None:
        super().__init__(space, random_sets(space, seed))
        self.seed, self.init, self.rounded = seed, max(1, init), rounded
        self._points, self._values = list[list[float]](), list[float]()

    def suggest(self) -> DraftPlan | None:
        self.point = None
        if (tried := len(self._values)) < self.init:
            return super().suggest()
        # A seed per step: the draw does not depend on the steps before it.
        point = suggest_point(self._points, self._values, seed=[self.seed, tried])
        chosen = np.flatnonzero(point > 0.5)
        if self.space.size is not None:
            chosen = np.argsort(-point, kind="stable")[: self.space.size]
        self.point = [round(float(x), 6) for x in point]
        return DraftPlan.of(self.space.layers, map(int, chosen))

    def register(self, skip: DraftPlan, value: float) -> None:
        """`value` is minimised; the process models its negative."""
        super().register(skip, value)
        corner = [float(s in skip.skipped) for s in self.space.sublayers]
        self._points.append(corner if self.rounded else self.point or corner)
        self._values.append(-value)


def make_strategy(options: Search, layers: int) -> Strategy:
    """The strategy of `options`."""
    space = Space(layers, options.ratio)
    if options.strategy == "bayes":
        return Bayes(space, options.seed, options.init, options.rounded)
    return Strategy(space, random_sets(space, options.seed))
