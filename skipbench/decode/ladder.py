"""`SkipLadder`: skip sets that `auto` may draft with, judged while decoding: nested ones, found
within a budget of time, and one that was given.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from skipbench.decode.chances import Counters
from skipbench.decode.sampling import best_tokens
from skipbench.decode.state import State
from skipbench.decode.trial_passes import forward_committed
from skipbench.metrics.summary import Latency
from skipbench.profile.influence import rank_by_cosine
from skipbench.profile.latency import LatencyModel
from skipbench.skipset import SkipSet

SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 11 / 16, 3 / 4)
"""Of the sub-layers, that the rungs leave out, each all that the one before does."""
STEEP = 3.0  # a nested set errs with its share to this power, until it was tried itself
GIVEN = len(SHARES)  # rung of the set that was given
PRIORS = [0.5] * len(SHARES) + [0.85]  # agreement of a rung that was not tried yet
WEIGHT = 4.0  # tokens that it counts for
DECAY = 0.99
CREDIT = 4.0  # passes that may be spent before any decoding has earned them
MOST_STEPS = 16
HOPE, DOUBT = 0.98, 0.3  # best agreement of what was never tried, and what one trial leaves open
NOTHING_LOST = -1.0
"""Value of a round, less its bonus, that earns the present rate: `accepted + 1 = rate * price`."""
RANK_EVERY = 16  # trials between two rankings
ROUNDS, FADE = 8.0, 0.98  # rounds that `chain_value` counts for; what is kept of others per round


class SkipLadder:
    """Skip sets S1 inside S2 inside ..., and the given one, each with the chance that a token
    drafted without it is right, and with what its rounds were worth.

    A trial runs the newest output tokens once more without a set, over scratch rows, and counts
    where it says what the target said (SWIFT's matchness); a ranking runs them with the full model.
    Both are done while they cost at most `explore` of the time, and not where even the best that
    may be hoped for would not pay. The given set needs no trial.
    """

    def __init__(
        self, layers: int, window: int, explore: float, given: SkipSet | None = None
    ) -> None:
        """`window`: output tokens of a trial; `explore`: share of the time that trials may take;
        `given`: a set that a search found.
        """
        self.layers, self.window, self.explore = layers, window, explore
        self._given = {} if given is None else {GIVEN: given}
        self.sets: dict[int, SkipSet] = dict(self._given)
        """The set of every rung that has one."""
        self.agreement = Counters(PRIORS, WEIGHT, DECAY)
        self.steps = [1 - share for share in SHARES] + [1.0]
        """Price of a draft step per rung, in passes of one row."""
        self.outcomes = [[0.0, 0.0, 0.0] for _ in PRIORS]
        """Per rung: rounds that it drafted, their tokens beyond the bonus, and their price."""
        self.rank: list[int] = []
        self.trials = 0
        self.tried = [0] * len(SHARES) + [1]  # trials per rung of the present ranking
        self.spent = self.explored = 0.0

    def price(self, latency: Latency | None) -> None:
        """Prices the rungs by sub-layer latencies; without them, by the number of sub-layers."""
        for rung, skip in self.sets.items():
            if latency is None:
                self.steps[rung] = 1 - len(skip.skipped) / (2 * self.layers)
            else:
                step_s = latency.draft_s(len(skip.attention), len(skip.mlp))
                self.steps[rung] = step_s / latency.target_s()

    def begin(self, state: State, latency: LatencyModel | None) -> None:
        """A new prompt starts."""
        self._latency = None if latency is None else latency.at(state.lm.cache.length)
        self.price(self._latency)

    def _enter(self, rank: list[int]) -> None:
        self.rank = rank
        count = 2 * self.layers
        self.sets = self._given | {
            rung: SkipSet.of(self.layers, rank[: max(1, min(count - 1, round(share * count)))])
            for rung, share in enumerate(SHARES)
        }
        self.tried = [0] * len(SHARES) + [1]
        self.outcomes[:GIVEN] = [[0.0, 0.0, 0.0] for _ in SHARES]

    def chance(self, rung: int) -> float:
        """Agreement of a rung, as it was counted.

        The prior of a nested set that was not tried is that of the nearest one that was: the more
        sub-layers a set leaves out, the more often it errs.
        """
        tried = [other for other in range(GIVEN) if self.tried[other]]
        if rung == GIVEN or self.tried[rung] or not tried:
            return self.agreement.p[rung]
        near = min(tried, key=lambda other: abs(other - rung))
        errs = (1 - self.agreement.p[near]) * (SHARES[rung] / SHARES[near]) ** STEEP
        return self.agreement.given_prior(rung, max(0.0, 1 - errs))

    def best(self, prices: Sequence[float], rate: float, budget: int) -> tuple[int, float]:
        """The rung whose chain is worth most, tokens beyond the bonus less `rate` times the price
        of the round; -1 where none was tried.

        That is what its rounds were worth. The prior is `chain_value`, and by how much the rounds
        of all rungs were worth more: a chain that ends where the draft is unsure is worth more than
        its mean agreement says.
        """
        if not any(self.tried[rung] for rung in self.sets):
            return -1, float("-inf")
        worth = {
            rung: chain_value(self.chance(rung), self.steps[rung], prices, rate, budget)
            for rung in self.sets
            if rung == GIVEN or any(self.tried[:GIVEN])
        }
        brought = {r: self.outcomes[r][1] - rate * self.outcomes[r][2] for r in worth}
        rounds = {r: self.outcomes[r][0] for r in worth}
        more = sum(brought[r] - rounds[r] * worth[r] for r in worth)
        more /= ROUNDS + sum(rounds.values())
        value = {r: (ROUNDS * (worth[r] + more) + brought[r]) / (ROUNDS + rounds[r]) for r in worth}
        found = max(value, key=lambda rung: value[rung])
        return found, value[found]

    def learn(self, rung: int, tokens: int, price: float) -> None:
        """A round ended that drafted with `rung`, -1 for none: accepted `tokens`, at `price`.

        What the other rungs' rounds were worth is forgotten bit by bit, so that a rung that did not
        pay is tried again.
        """
        for other, sums in enumerate(self.outcomes):
            new = (1.0, tokens, price) if other == rung else (0.0, 0.0, 0.0)
            sums[:] = [FADE * old + now for old, now in zip(sums, new, strict=True)]

    def explore_one(self, state: State, prices: Sequence[float], rate: float) -> float:
        """One ranking or trial, where enough output stands and enough time was earned; returns its
        price in passes.
        """
        if len(state.output) < self.window + 2 or self.explore <= 0:
            return 0.0
        rows = prices[min(self.window, len(prices) - 1)]
        ranks = not self.rank or self.trials % RANK_EVERY == RANK_EVERY - 1
        rung, value = self._most_promising(prices, rate)
        if value <= NOTHING_LOST:
            return 0.0
        price = rows if ranks else rows * self.steps[rung]
        if self.explored + price > self.explore * self.spent + CREDIT:
            return 0.0
        self.explored += price
        self.trials += 1
        at = state.lm.cache.length - self.window
        if ranks:
            states: list[Tensor] = []
            forward_committed(state, at, self.window, hidden_states=states)
            self._enter(rank_by_cosine(states))
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
        """The nested rung that would be worth most if it were as good as it may still be, and its
        value then, -inf where the given set is worth more.

        A set is no better than one inside it; what was tried rarely may be better than it looked.
        """
        hope, found, value = HOPE, 0, float("-inf")
        for rung in range(len(SHARES)):
            if self.tried[rung]:
                doubt = DOUBT / self.tried[rung] ** 0.5
                hope = min(hope, self.agreement.p[rung] + doubt)
            worth = chain_value(hope, self.steps[rung], prices, rate, MOST_STEPS)
            if worth > value:
                found, value = rung, worth
        if self._given:
            known = chain_value(
                self.agreement.p[GIVEN], self.steps[GIVEN], prices, rate, MOST_STEPS
            )
            value = value if value > known else float("-inf")
        return found, value

    @property
    def state_dict(self) -> dict[str, Any]:
        """Ranking, agreement, and the time spent."""
        return {
            "rank": self.rank,
            "agreement": self.agreement.state_dict,
            "tried": list(self.tried),
            "trials": self.trials,
            "spent": self.spent,
            "explored": self.explored,
            "outcomes": [list(sums) for sums in self.outcomes],
        }

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        if state["rank"]:
            self._enter(list(state["rank"]))
        self.agreement.state_dict = state["agreement"]
        self.tried, self.trials = list(state["tried"]), state["trials"]
        self.spent, self.explored = state["spent"], state["explored"]
        self.outcomes = [list(sums) for sums in state["outcomes"]]


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
