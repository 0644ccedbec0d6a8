"""`SkipLadder`: nested skip sets, found and judged while decoding, within a budget of time."""

import math
from collections.abc import Sequence

from skipbench.config.configurable import Stateful
from skipbench.decode.chances import Counters
from skipbench.decode.state import State
from skipbench.decode.trial_passes import predicts, recent_states
from skipbench.metrics.costs import Latency
from skipbench.profile.influence import squared_turns
from skipbench.skipset import SkipSet

SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
"""Of the sub-layers, that the rungs leave out, each all that the one before does."""
TURN = 1.0
"""Angle by which a set that keeps exp(-1) of the agreement turns the state, in radians: the root of
the sum of its sub-layers' squares. Measured: 0.6 to 1 on SmolLM2-135M, 1.3 to 1.7 on `tiny`.
"""
WEIGHT, DECAY = 4.0, 0.99  # tokens that the prior of a rung's agreement counts for
CREDIT = 4.0  # passes that may be spent before any decoding has earned them
MAX_STEPS = 16
EPSILON = 1e-6
MAX_AGREEMENT, DOUBT = 0.98, 0.2  # agreement never assumed above; open after no trial or one
NOTHING_LOST = -1.0
"""Value of a round, less its bonus, that earns the present rate: `accepted + 1 = rate * price`."""
RANK_EVERY = 16  # trials between two rankings


class SkipLadder(Stateful):
    """Skip sets S1 inside S2 inside ..., each with the chance that a token drafted without it is
    right.

    A trial runs the newest output tokens once more without a set, over scratch rows, and counts
    where it says what the target said (SWIFT's matchness); a ranking runs them with the full model.
    Both are done while they cost at most `explore` of the time, and not where even the best that
    may be hoped for would not pay.
    """

    carried = ("rank", "turns", "agreement", "tried", "trials", "spent", "explored")

    def __init__(self, layers: int, window: int, explore: float) -> None:
        """`window`: output tokens of a trial; `explore`: share of the time that trials may
        take.
        """
        self.layers, self.window, self.explore = layers, window, explore
        self.sets: list[SkipSet] = []
        self.agreement = Counters([0.5] * len(SHARES), WEIGHT, DECAY)
        self.turns = [0.0] * len(SHARES)
        """Squared angle per rung."""
        self.steps = [1 - share for share in SHARES]
        """Price of a draft step per rung, in passes of one row."""
        self.rank: list[int] = []
        self.trials = 0
        self.tried = [0] * len(SHARES)  # trials per rung of the present ranking
        self.spent = self.explored = 0.0

    def begin(self, latency: Latency | None) -> None:
        """A new prompt starts; `latency`: at its length."""
        self._latency = latency
        if self.rank:
            self._enter()

    def _enter(self) -> None:
        """Makes the sets of the ranking, and prices them by sub-layer latencies; without these, by
        the number of sub-layers.
        """
        self.sets = [SkipSet.of(self.layers, self.rank[:size]) for size in self._sizes()]
        self.steps = [step_price(skip, self._latency) for skip in self.sets]

    def _sizes(self) -> list[int]:
        count = 2 * self.layers
        return [max(1, min(count - 1, round(share * count))) for share in SHARES]

    def chance(self, rung: int) -> float:
        """Agreement of a rung: what was counted, and as its prior what the angle says, scaled as
        the nearest rung that was tried has it: `-ln a` grows with the square.
        """
        scale, tried = TURN**-2, [r for r, trials in enumerate(self.tried) if trials]
        if tried:
            near = min(tried, key=lambda other: abs(other - rung))
            lost = -math.log(max(EPSILON, self.agreement.chance(near)))
            scale = lost / max(EPSILON, self.turns[near])
        return self.agreement.chance(rung, math.exp(-scale * self.turns[rung]))

    def best(self, prices: Sequence[float], rate: float, budget: int) -> tuple[int, float]:
        """The rung whose chain has the highest value, tokens beyond the bonus less `rate` times the
        price of the round, and that value; -1 where none was tried.
        """
        if not any(self.tried):
            return -1, -math.inf
        return self._best([self.chance(rung) for rung in range(len(SHARES))], prices, rate, budget)

    def _best(
        self, chances: list[float], prices: Sequence[float], rate: float, budget: int
    ) -> tuple[int, float]:
        """The rung of the highest value, of equal ones the first, and that value."""
        pairs = zip(chances, self.steps, strict=True)
        values = [chain_value(chance, step, prices, rate, budget) for chance, step in pairs]
        value = max(values)
        return values.index(value), value

    def explore_one(self, state: State, prices: Sequence[float], rate: float) -> float:
        """Does one ranking or trial, if there is output and time for it; returns its price in
        passes.
        """
        written = len(state.tokens) - state.prompt_length
        if written < self.window + 2 or self.explore <= 0:
            return 0.0
        rows = prices[min(self.window, len(prices) - 1)]
        ranks = not self.rank or self.trials % RANK_EVERY == RANK_EVERY - 1
        earned = self.explore * self.spent + CREDIT - self.explored
        if rows * (1.0 if ranks else min(self.steps)) > earned:
            return 0.0
        rung, value = self._best(self._hopes(), prices, rate, MAX_STEPS)
        if value <= NOTHING_LOST:
            return 0.0
        price = rows if ranks else rows * self.steps[rung]
        if price > earned:
            return 0.0
        self.explored += price
        self.trials += 1
        if ranks:
            turned = squared_turns(recent_states(state, self.window))
            self.rank = sorted(range(len(turned)), key=turned.__getitem__)
            self.turns = [sum(turned[i] for i in self.rank[:size]) for size in self._sizes()]
            self.tried = [0] * len(SHARES)
            self._enter()
            return price
        for hit in predicts(
            state, state.lm.cache.length - self.window, self.window, self.sets[rung]
        ):
            self.agreement.update(rung, hit)
        self.tried[rung] += 1
        return price

    def _hopes(self) -> list[float]:
        """Highest agreement that each rung may still have; less is known of what was tried less."""
        if not self.rank:
            return [MAX_AGREEMENT] * len(SHARES)
        doubts = [DOUBT / max(1, tried) ** 0.5 for tried in self.tried]
        return [min(MAX_AGREEMENT, self.chance(rung) + doubt) for rung, doubt in enumerate(doubts)]


def step_price(skip: SkipSet, latency: Latency | None) -> float:
    """Price of a draft step without `skip`, in passes of one row: by sub-layer latencies, or, where
    there are none, by the number of sub-layers.
    """
    if latency is None:
        return 1 - skip.ratio
    return latency.pass_s(skip) / latency.pass_s()


def chain_value(
    agreement: float, step: float, prices: Sequence[float], rate: float, budget: int
) -> float:
    """Largest `sum_i a^i - rate * (n step + C(1 + n))` over chains of n >= 1 draft steps."""
    best, expected, chance = float("-inf"), 0.0, 1.0
    for n in range(1, min(budget, MAX_STEPS, len(prices) - 2) + 1):
        chance *= agreement
        expected += chance
        best = max(best, expected - rate * (n * step + prices[1 + n]))
    return best
