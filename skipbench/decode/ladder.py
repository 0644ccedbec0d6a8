"""`SkipLadder`: nested skip sets, found and judged while decoding, within a budget of time."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from skipbench.decode.chances import Counters
from skipbench.decode.sampling import best_tokens
from skipbench.decode.state import State
from skipbench.decode.trial_passes import forward_committed
from skipbench.metrics.costs import Latency, LatencyModel
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
MOST_STEPS = 16
LEAST = 1e-6
HOPE, DOUBT = 0.98, 0.2  # most agreement hoped for, and what no trial or one leaves open
NOTHING_LOST = -1.0
"""Value of a round, less its bonus, that earns the present rate: `accepted + 1 = rate * price`."""
RANK_EVERY = 16  # trials between two rankings


class SkipLadder:
    """Skip sets S1 inside S2 inside ..., each with the chance that a token drafted without it is
    right.

    A trial runs the newest output tokens once more without a set, over scratch rows, and counts
    where it says what the target said (SWIFT's matchness); a ranking runs them with the full model.
    Both are done while they cost at most `explore` of the time, and not where even the best that
    may be hoped for would not pay.
    """

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

    def price(self, latency: Latency | None) -> None:
        """Prices the rungs by sub-layer latencies; without them, by the number of sub-layers."""
        for rung, skip in enumerate(self.sets):
            self.steps[rung] = step_price(skip, latency)

    def begin(self, state: State, latency: LatencyModel | None) -> None:
        """A new prompt starts."""
        self._latency = None if latency is None else latency.at(state.lm.cache.length)
        self.price(self._latency)

    def _enter(self, rank: list[int], turns: list[float]) -> None:
        self.rank, self.turns = rank, turns
        self.sets = [SkipSet.of(self.layers, rank[:size]) for size in self._sizes()]
        self.tried = [0] * len(SHARES)

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
            lost = -math.log(max(LEAST, self.agreement.p[near]))
            scale = lost / max(LEAST, self.turns[near])
        return self.agreement.given_prior(rung, math.exp(-scale * self.turns[rung]))

    def best(self, prices: Sequence[float], rate: float, budget: int) -> tuple[int, float]:
        """The rung whose chain is worth most, tokens beyond the bonus less `rate` times the price
        of the round; -1 where none was tried.
        """
        found, value = -1, float("-inf")
        for rung in range(len(self.sets) if any(self.tried) else 0):
            worth = chain_value(self.chance(rung), self.steps[rung], prices, rate, budget)
            if worth > value:
                found, value = rung, worth
        return found, value

    def explore_one(self, state: State, prices: Sequence[float], rate: float) -> float:
        """One ranking or trial, where enough output stands and enough time was earned; returns its
        price in passes.
        """
        written = len(state.tokens) - state.prompt_length
        if written < self.window + 2 or self.explore <= 0:
            return 0.0
        rows = prices[min(self.window, len(prices) - 1)]
        ranks = not self.rank or self.trials % RANK_EVERY == RANK_EVERY - 1
        earned = self.explore * self.spent + CREDIT - self.explored
        if rows * (1.0 if ranks else min(self.steps)) > earned:
            return 0.0
        rung, value = self._most_promising(prices, rate)
        if value <= NOTHING_LOST:
            return 0.0
        price = rows if ranks else rows * self.steps[rung]
        if price > earned:
            return 0.0
        self.explored += price
        self.trials += 1
        at = state.lm.cache.length - self.window
        if ranks:
            states: list[Tensor] = []
            forward_committed(state, at, self.window, hidden_states=states)
            turned = squared_turns(states)
            rank = sorted(range(len(turned)), key=turned.__getitem__)
            self._enter(rank, [sum(turned[i] for i in rank[:size]) for size in self._sizes()])
            self.price(self._latency)
            return price
        hidden = forward_committed(state, at, self.window, self.sets[rung])
        said: list[int] = best_tokens(state.lm.head(hidden)).tolist()
        wanted = state.tokens[at + 1 : at + 1 + self.window]
        for a, b in zip(said, wanted, strict=True):
            self.agreement.update(rung, a == b)
        self.tried[rung] += 1
        return price

    def _most_promising(self, prices: Sequence[float], rate: float) -> tuple[int, float]:
        """The rung that would be worth most if it were as good as it may still be, and its value
        then; what was tried rarely may be better than it looks.
        """
        found, value = 0, float("-inf")
        for rung, step in enumerate(self.steps):
            hope = HOPE
            if self.sets:
                hope = min(HOPE, self.chance(rung) + DOUBT / max(1, self.tried[rung]) ** 0.5)
            worth = chain_value(hope, step, prices, rate, MOST_STEPS)
            if worth > value:
                found, value = rung, worth
        return found, value

    @property
    def state_dict(self) -> dict[str, Any]:
        """Ranking, agreement, and the time spent."""
        return {
            "rank": self.rank,
            "turns": list(self.turns),
            "agreement": self.agreement.state_dict,
            "tried": list(self.tried),
            "trials": self.trials,
            "spent": self.spent,
            "explored": self.explored,
        }

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        if state["rank"]:
            self._enter(list(state["rank"]), list(state["turns"]))
        self.agreement.state_dict = state["agreement"]
        self.tried, self.trials = list(state["tried"]), state["trials"]
        self.spent, self.explored = state["spent"], state["explored"]


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
    for n in range(1, min(budget, MOST_STEPS, len(prices) - 2) + 1):
        chance *= agreement
        expected += chance
        best = max(best, expected - rate * (n * step + prices[1 + n]))
    return best
