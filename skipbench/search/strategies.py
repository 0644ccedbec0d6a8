"""Strategies that choose the next skip set to try; the objective is minimised.

`suggest` is a function of the seed and of the registered values, so that a search can be resumed.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from skipbench.errors import SkipbenchError
from skipbench.search.bayes import suggest_point
from skipbench.search.space import Space
from skipbench.skipset import SkipSet

EXHAUSTIVE_LIMIT = 12


class Strategy(Protocol):
    """Proposes skip sets and learns their values."""

    def suggest(self) -> SkipSet | None:
        """The next set, or `None` when there is nothing left to try."""
        ...

    def register(self, skip: SkipSet, value: float) -> None: ...


class Random:
    """Random sets, after `start` where one is given: `space.size` sub-layers, or each free one with
    probability one half when there is no size.
    """

    def __init__(self, space: Space, seed: int, start: SkipSet | None = None) -> None:
        self.space, self.seed, self.start, self.tried = space, seed, start, 0

    def suggest(self) -> SkipSet:
        if self.tried == 0 and self.start is not None:
            return self.start
        rng = random.Random(f"{self.seed}/{self.tried}")
        if self.space.size is None:
            return self.space.set_of([s for s in self.space.free if rng.random() < 0.5])
        return self.space.set_of(rng.sample(self.space.free, self.space.size))

    def register(self, skip: SkipSet, value: float) -> None:
        self.tried += 1


class Bayes:
    """Bayesian optimisation over one coordinate in [0, 1] a sub-layer, as the published code of
    Self-SD does it.

    A coordinate above 0.5 skips; with a `ratio`, the largest ones do. Upper confidence bound with
    kappa 2.576, Gaussian process with noise `alpha=1e-2`. `rounded` registers the set's corner of
    the cube in place of the raw point, which is what the value belongs to. The first `init` sets
    come from `first`, in whose space the search goes on.
    """

    def __init__(self, first: Random, init: int = 5, rounded: bool = False) -> None:
        self.first, self.space, self.init, self.rounded = first, first.space, init, rounded
        self._tried: list[tuple[np.ndarray, float]] = []
        self._point: np.ndarray | None = None

    def suggest(self) -> SkipSet:
        self._point = None
        if self.first.tried < self.init or not self._tried:
            return self.first.suggest()
        # A seed per step: the draw does not depend on the steps before it.
        points, values = zip(*self._tried, strict=True)
        self._point = suggest_point(points, values, seed=[self.first.seed, self.first.tried])
        if self.space.size is None:
            chosen = np.flatnonzero(self._point > 0.5)
        else:
            chosen = np.argsort(-self._point, kind="stable")[: self.space.size]
        return self.space.set_of([self.space.free[i] for i in chosen])

    def register(self, skip: SkipSet, value: float) -> None:
        """`value` is minimised; the process models its negative."""
        self.first.tried += 1
        corner = np.array([float(s in skip.skipped) for s in self.space.free])
        self._tried.append((corner if self.rounded or self._point is None else self._point, -value))

    def point(self) -> list[float] | None:
        """The raw point of the last suggestion, for the trace."""
        return None if self._point is None else [round(float(x), 6) for x in self._point]

    def restore(self, point: list[float] | None) -> None:
        """Sets the raw point of a trial that is about to be registered from a trace."""
        self._point = None if point is None else np.array(point)


class Greedy:
    """Starts from a set and toggles the sub-layer that helps most, until no change improves the
    value by `tol`.
    """

    def __init__(self, space: Space, tol: float = 0.0, start: SkipSet | None = None) -> None:
        self.space, self.tol = space, tol
        self._base: frozenset[int] = start.skipped if start is not None else frozenset()
        self._base_value: float | None = None
        self._queue: list[frozenset[int]] = [self._base]
        self._best: tuple[float, frozenset[int]] | None = None

    def suggest(self) -> SkipSet | None:
        return SkipSet(self.space.layers, self._queue[0]) if self._queue else None

    def register(self, skip: SkipSet, value: float) -> None:
        self._queue.pop(0)
        if self._best is None or value < self._best[0]:
            self._best = (value, skip.skipped)
        if self._queue:
            return
        if self._base_value is not None and self._best[0] >= self._base_value * (1 - self.tol):
            return  # a whole level without an improvement
        arrived = self._best[1] ^ self._base  # going straight back would only measure noise
        self._base_value, self._base = self._best
        self._best = None
        self._queue = [self._base ^ {s} for s in self.space.free if frozenset({s}) != arrived]


class Exhaustive:
    """Every set of at most 12 sub-layers that are free."""

    def __init__(self, space: Space) -> None:
        free = space.free
        if len(free) > EXHAUSTIVE_LIMIT:
            raise SkipbenchError(
                f"exhaustive search over {len(free)} sub-layers means {2 ** len(free)} sets; "
                f"at most {EXHAUSTIVE_LIMIT} sub-layers are allowed"
            )
        self.space = space
        self._sets: Iterator[tuple[int, ...]] = itertools.chain.from_iterable(
            itertools.combinations(free, k) for k in range(len(free) + 1)
        )
        self._next = next(self._sets, None)

    def suggest(self) -> SkipSet | None:
        return None if self._next is None else self.space.set_of(self._next)

    def register(self, skip: SkipSet, value: float) -> None:
        self._next = next(self._sets, None)


class Nested:
    """Sets of which each contains the one before: the first sub-layers of `order`, 0, some, more.

    Half of the trials are spread evenly over the sizes, up to `space.size` or all; the others
    halve the distance to the best size so far, on both of its sides.
    """

    def __init__(self, space: Space, order: Sequence[int], iterations: int) -> None:
        free = set(space.free)
        self.space, self._order = space, [s for s in order if s in free]
        top = len(self._order) if space.size is None else space.size
        grid = max(2, (iterations + 1) // 2)
        self._gap = max(1, round(top / (grid - 1)))
        self._top, self._queue = top, sorted({*range(0, top, self._gap), top})
        self._values: dict[int, float] = {}

    def suggest(self) -> SkipSet | None:
        return self.space.set_of(self._order[: self._queue[0]]) if self._queue else None

    def register(self, skip: SkipSet, value: float) -> None:
        self._values[self._queue.pop(0)] = value
        while not self._queue and self._gap > 1:
            self._gap = -(-self._gap // 2)
            best = min(self._values, key=lambda size: self._values[size])
            near = {max(0, best - self._gap), min(self._top, best + self._gap)}
            self._queue = sorted(near - set(self._values))


def make_strategy(
    name: str,
    layers: int,
    seed: int,
    ratio: float | None,
    protect: Sequence[int],
    init: int,
    rounded: bool,
    tol: float,
    start: SkipSet | None = None,
    order: Sequence[int] = (),
    iterations: int = 0,
) -> Strategy:
    """The strategy called `name`: bayes, random, greedy, exhaustive or nested.

    `order` and `iterations` are for `Nested` only.

    Raises:
        SkipbenchError: another name, a ratio outside 0 to 1, a protected sub-layer that the model
            lacks or that `start` skips.
    """
    space = Space(layers, ratio, protect)
    both = sorted(set(protect) & (start.skipped if start is not None else frozenset()))
    if both:
        raise SkipbenchError(
            f"search.start skips the sub-layers {both}, which search.protect keeps; change "
            "one of them"
        )
    match name:
        case "bayes":
            return Bayes(Random(space, seed, start), init, rounded)
        case "random":
            return Random(space, seed, start)
        case "greedy":
            return Greedy(space, tol, start)
        case "exhaustive":
            return Exhaustive(space)
        case "nested":
            return Nested(space, order, iterations)
    raise SkipbenchError(
        f"unknown search strategy {name!r}; known: bayes, random, greedy, exhaustive, nested"
    )
