"""Chances that drafted tokens are accepted, counted while decoding; and `SkipLadder`: nested skip
sets, tried within a budget of time.
"""

import math
from collections.abc import Sequence

from skipbench.config.configurable import Stateful
from skipbench.decode.draft import State
from skipbench.decode.trial_passes import predicts, recent_states
from skipbench.draft_plan import DraftPlan
from skipbench.metrics.costs import Latency
from skipbench.profile.influence import ranked, squared_turns

SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
"""Shares of the sub-layers that the rungs leave out; each rung contains the one before."""
TURN = 1.0
"""Radians by which a set that keeps exp(-1) of the agreement turns the state: the root of its
sub-layers' summed squares. Measured: 0.6 to 1 on SmolLM2-135M, 1.3 to 1.7 on `tiny`.
"""
WEIGHT, DECAY = 4.0, 0.99  # tokens that the prior of a rung's agreement counts for
CREDIT = 4.0  # passes available before decoding has earned any
MAX_STEPS = 16
EPSILON = 1e-6
MAX_AGREEMENT, DOUBT = 0.98, 0.2  # upper limit of any estimate; its error after at most one trial
BREAK_EVEN = -1.0
"""Value of a round, bonus left out, that keeps the present rate: `accepted + 1 = rate * price`."""
RANK_EVERY = 16  # trials between two rankings


class Counters(Stateful):
    """One chance per kind of draft token: how many of them were accepted, where their parent was.

    `p = (hits + weight * prior) / (tries + weight)`; every try of a kind multiplies the weight of
    its earlier ones by `decay`.
    """

    def __init__(self, priors: Sequence[float], weight: float = 16.0, decay: float = 0.998) -> None:
        """`priors`: the chance of every kind before a try; `weight`: tries they count for."""
        self._priors, self._weight, self._decay = priors, weight, decay
        self._counts: dict[int, list[float]] = {}

    def update(self, kind: int, hit: bool) -> None:
        """Counts a try of `kind`."""
        counts = self._counts.setdefault(kind, [0.0, 0.0])
        counts[0] = counts[0] * self._decay + hit
        counts[1] = counts[1] * self._decay + 1.0

    def chance(self, kind: int, prior: float | None = None) -> float:
        """The present chance of a kind; `prior` replaces its own."""
        hits, tries = self._counts.get(kind, (0.0, 0.0))
        prior = self._priors[kind] if prior is None else prior
        return (hits + self._weight * prior) / (tries + self._weight)

    def state_dict(self) -> dict[str, list[float]]:
        return {str(kind): list(counts) for kind, counts in self._counts.items()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self._counts = {int(kind): list(counts) for kind, counts in state.items()}


class Calibration(Stateful):
    """Corrects products of chances along a path by how often such paths were accepted.

    A tree holds the paths that look best, so that their chances are overestimated more often than
    not; tokens of one path are not independent, either.
    """

    WIDTH = 0.5  # of a bin of -ln(p)
    BINS = 12
    DECAY = 0.999

    carried = ("sums",)

    def __init__(self, weight: float = 10.0) -> None:
        """`weight`: accepted paths that the factor 1 of a bin counts for."""
        self.weight, self.sums = weight, [(0.0, 0.0)] * self.BINS
        """Accepted and expected paths per bin."""

    def _bin(self, p: float) -> int:
        return min(self.BINS - 1, int(-math.log(max(p, 1e-9)) / self.WIDTH))

    def __call__(self, p: float) -> float:
        """The chance of a path whose product is `p`."""
        accepted, expected = self.sums[self._bin(p)]
        return min(1.0, p * (accepted + self.weight) / (expected + self.weight))

    def update(self, p: float, accepted: bool) -> None:
        """Counts a verified path of product `p`."""
        hits, expected = self.sums[at := self._bin(p)]
        self.sums[at] = hits * self.DECAY + accepted, expected * self.DECAY + p


class SkipLadder(Stateful):
    """Skip sets S1 inside S2 inside ..., each with the chance that a token drafted without it is
    right.

    A trial runs the newest output tokens once more without a set, over scratch rows, and counts
    the tokens that it predicts as the target did (SWIFT's matchness); a ranking runs them with the
    full model. Both are done while they cost at most `explore` of the time, and only if the best
    agreement that is still possible would pay.
    """

    carried = ("rank", "turns", "agreement", "tried", "trials", "spent", "explored")

    def __init__(self, layers: int, window: int, explore: float) -> None:
        """`window`: output tokens per trial; `explore`: maximum share of the time for trials."""
        self.layers, self.window, self.explore = layers, window, explore
        self.sizes = [max(1, min(2 * layers - 1, round(share * 2 * layers))) for share in SHARES]
        """Sub-layers that each rung leaves out."""
        self.sets: list[DraftPlan] = []
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
        """Makes the sets of the ranking, and prices them; `latency`: at the present length."""
        self._latency = latency
        if self.rank:
            self.sets = [DraftPlan.of(self.layers, self.rank[:size]) for size in self.sizes]
            self.steps = [step_price(skip, latency) for skip in self.sets]

    def chance(self, rung: int) -> float:
        """Agreement by trials; the prior, -ln a ~ angle^2, is scaled at the nearest tried rung."""
        scale, tried = TURN**-2, [r for r, trials in enumerate(self.tried) if trials]
        if tried:
            near = min(tried, key=lambda other: abs(other - rung))
            lost = -math.log(max(EPSILON, self.agreement.chance(near)))
            scale = lost / max(EPSILON, self.turns[near])
        return self.agreement.chance(rung, math.exp(-scale * self.turns[rung]))

    def best(
        self, prices: Sequence[float], rate: float, budget: int, chances: Sequence[float] = ()
    ) -> tuple[int, float]:
        """The rung whose chain has the highest value, tokens beyond the bonus less `rate` times the
        price of the round, and that value; -1 where none was tried, unless `chances` are given.
        """
        if not any(self.tried) and not chances:
            return -1, -math.inf
        chances = chances or [self.chance(rung) for rung in range(len(SHARES))]
        pairs = zip(chances, self.steps, strict=True)
        values = [chain_value(chance, step, prices, rate, budget) for chance, step in pairs]
        return values.index(max(values)), max(values)

    def explore_one(self, state: State, prices: Sequence[float], rate: float) -> float:
        """Does one ranking or trial if output and time allow; returns its price in passes."""
        if len(state.output) < self.window + 2 or self.explore <= 0:
            return 0.0
        rows = prices[min(self.window, len(prices) - 1)]
        ranks = not self.rank or self.trials % RANK_EVERY == RANK_EVERY - 1
        earned = self.explore * self.spent + CREDIT - self.explored
        if rows * (1.0 if ranks else min(self.steps)) > earned:
            return 0.0
        hopes = [MAX_AGREEMENT] * len(SHARES)  # highest agreement that each rung may still have
        if self.rank:
            doubts = [DOUBT / max(1, tried) ** 0.5 for tried in self.tried]
            hopes = [min(MAX_AGREEMENT, self.chance(r) + doubt) for r, doubt in enumerate(doubts)]
        rung, value = self.best(prices, rate, MAX_STEPS, hopes)
        price = rows if ranks else rows * self.steps[rung]
        if value <= BREAK_EVEN or price > earned:
            return 0.0
        self.explored += price
        self.trials += 1
        if ranks:
            turned = squared_turns(recent_states(state, self.window))
            self.rank = ranked(turned)
            self.turns = [sum(turned[i] for i in self.rank[:size]) for size in self.sizes]
            self.tried = [0] * len(SHARES)
            self.begin(self._latency)
            return price
        at = state.lm.cache.length - self.window
        for hit in predicts(state, at, self.window, self.sets[rung]):
            self.agreement.update(rung, hit)
        self.tried[rung] += 1
        return price


def step_price(skip: DraftPlan, latency: Latency | None) -> float:
    """Price of a draft step in passes of one row, by latencies or by the number of sub-layers."""
    return 1 - skip.ratio if latency is None else latency.pass_s(skip) / latency.pass_s()


def chain_value(
    agreement: float, step: float, prices: Sequence[float], rate: float, budget: int
) -> float:
    """Largest `sum_i a^i - rate * (n step + C(1 + n))` over chains of n >= 1 draft steps."""
    best, expected, chance = -math.inf, 0.0, 1.0
    for n in range(1, min(budget, MAX_STEPS, len(prices) - 2) + 1):
        chance *= agreement
        expected += chance
        best = max(best, expected - rate * (n * step + prices[1 + n]))
    return best
