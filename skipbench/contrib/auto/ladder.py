"""`PlanLadder`: plans of draft passes, each leaving more out, priced and tried within a budget of
time.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from skipbench.config.configurable import Stateful
from skipbench.contrib.lowbit.chances import MAX_STEPS, Counters, chain_rates, chain_value
from skipbench.decode.draft import State
from skipbench.decode.trial_passes import predicts, recent_states
from skipbench.draft_plan import DraftPlan
from skipbench.metrics.prices import Prices

SHARES = (0.0, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
"""Shares of the sub-layers that the rungs leave out; each rung contains the one before. The first
is a draft only where passes in fewer bits pay.
"""
TURN = 1.0
"""Radians by which a set that keeps exp(-1) of the agreement turns the state: the root of its
sub-layers' summed squares. Measured: 0.6 to 1 on SmolLM2-135M, 1.3 to 1.7 on `tiny`.
"""
RUNGS = len(SHARES)
VARIANT = "int8"
"""The variant of weights that drafts read where that pays."""
AGREEMENT = 0.95
"""Prior of its agreement with nothing left out. Measured: 0.98 on SmolLM2-135M."""
WEIGHT = 4.0  # tokens that the prior of a rung's agreement counts for
CREDIT = 4.0  # passes available before decoding has earned any
EPSILON = 1e-6
NEARLY = 0.98  # of the rate of the best chain
MAX_AGREEMENT = 0.98  # upper limit of any estimate
DOUBT, TRIED_DOUBT = 0.2, 0.1  # errors of an estimate before a trial, and after one of 24 tokens
BREAK_EVEN = -1.0
"""Value of a round, bonus left out, that keeps the present rate: `accepted + 1 = rate * price`."""
PACE_SHARE = 0.1  # of the newest draft in the pace
RANK_EVERY = 16  # trials between two rankings


class PlanLadder(Stateful):
    """Plans whose skip sets contain one another, S0 = {} inside S1 inside S2 inside ..., the rest
    in 8 bits where that pays, each with the chance that a token drafted by it is right.

    A trial runs the newest output tokens once more by a plan, over scratch rows, and counts the
    tokens that it predicts as the target did (SWIFT's matchness); a ranking runs them with the
    full model. Both are done while they cost at most `explore` of the time, and only if the best
    agreement that is still possible would pay. Fewer bits with nothing left out need
    neither: they start at their prior, and what they draft is counted; they are tried where they do
    not draft any more.
    """

    carried = ("rank", "turns", "agreement", "tried", "trials", "spent", "explored", "pace")

    def __init__(self, layers: int, window: int, explore: float) -> None:
        """`window`: output tokens per trial; `explore`: maximum share of the time for trials."""
        self.layers, self.window, self.explore = layers, window, explore
        self.sizes = [0, *(max(1, min(2 * layers - 1, round(s * 2 * layers))) for s in SHARES[1:])]
        """Sub-layers that each rung leaves out."""
        self.plans: dict[int, DraftPlan] = {}
        """By rung, those that can draft."""
        self.agreement = Counters([0.5] * RUNGS, WEIGHT)
        self.turns = [0.0] * len(SHARES)
        """Squared angle per rung."""
        self.steps = [1 - share for share in SHARES]
        """Price of a draft step per rung, in passes of one row."""
        self.rank: list[int] = []
        self.trials = 0
        self.tried = [0] * RUNGS  # trials per rung of the present ranking
        self.spent = self.explored = 0.0
        self.pace = 1.0
        """Passes per drafted token."""
        self.begin(partial(Prices().step_price, 0))

    def begin(self, price: Callable[[DraftPlan], float], low: Sequence[float] = ()) -> None:
        """Makes the plans of the ranking, and prices them at the present length.

        Args:
            price: of a draft step by a plan in the model's own dtype, in passes of one row.
            low: price of 0, 1, ... rows in 8 bits, in passes of one row; empty drafts without.
        """
        self._begun, self.low = (price, low), low
        sizes = self.sizes if self.rank else [0]
        sets = [DraftPlan.of(self.layers, self.rank[:size]) for size in sizes]
        steps = [price(skip) * (low[1] if low else 1.0) for skip in sets]
        self.plans = dict(enumerate(self.plan(skip.skipped, bool(low)) for skip in sets))
        self.steps = [*steps, *self.steps[len(steps) :]]

    def plan(self, skipped: Iterable[int] = (), low: bool = True) -> DraftPlan:
        """A draft without these sub-layers, all else in 8 bits or as it is."""
        return DraftPlan(self.layers, frozenset(skipped), VARIANT if low else "")

    def chance(self, rung: int) -> float:
        """Agreement by trials and drafts. The prior, `-ln a ~ angle^2` beside what fewer bits
        lose, is scaled at the nearest tried rung.
        """
        whole = self.agreement.chance(0, AGREEMENT)
        if rung == 0:
            return whole
        whole = whole if self.low else 1.0
        scale, tried = TURN**-2, [other for other in range(1, RUNGS) if self.tried[other]]
        if tried:
            near = min(tried, key=lambda other: abs(other - rung))
            kept = min(1.0, self.agreement.chance(near) / whole)
            scale = -math.log(max(EPSILON, kept)) / max(EPSILON, self.turns[near])
        return self.agreement.chance(rung, whole * math.exp(-scale * self.turns[rung]))

    def step(self, rung: int) -> float:
        """Price of a drafted token, in passes of one row."""
        return self.steps[rung] * self.pace

    def drafted(self, rung: int, tokens: int, price: float) -> None:
        """Counts what a draft took: a pass may confirm tokens that it reads ahead."""
        self.pace += PACE_SHARE * (price / (tokens * self.steps[rung]) - self.pace)

    def pass_price(self, rung: int, rows: int) -> float:
        """Price of a draft pass over so many rows, in passes of one row."""
        return self.steps[rung] * (self.low[rows] / self.low[1] if rows > 1 else 1.0)

    def may_pay(self, step: float, prices: Sequence[float]) -> bool:
        """Whether a draft step of this price pays at the highest agreement and the lowest rate."""
        return chain_value(MAX_AGREEMENT, step, prices, 1.0, MAX_STEPS) > BREAK_EVEN

    def best(
        self, prices: Sequence[float], rate: float, budget: int, chances: Sequence[float] = ()
    ) -> tuple[int, float]:
        """The rung whose chain has the highest value, tokens beyond the bonus less `rate` times the
        price of the round, and that value; -1 where no rung is known, unless `chances` are given,
        0 for rungs to leave out.
        """
        if not (chances := chances or self._chances()):
            return -1, -math.inf
        values = [
            chain_value(chance, self.step(rung), prices, rate, budget) if chance else -math.inf
            for rung, chance in enumerate(chances)
        ]
        best = max(values)
        return (values.index(best) if best > -math.inf else -1), best

    def _chances(self) -> list[float]:
        """Agreement of every rung that is known, 0 for the others; none where no rung is."""
        tried = any(self.tried[1:])
        if not (tried or self.low):
            return []
        known = [bool(self.low), *[tried] * (RUNGS - 1)]
        return [self.chance(rung) if of else 0.0 for rung, of in enumerate(known)]

    def chain_rate(self, prices: Sequence[float], most: int) -> float:
        """Tokens per pass of the best chain of any known rung; 0 without one."""
        known = [(rung, chance) for rung, chance in enumerate(self._chances()) if chance]
        rates = (chain_rates(chance, self.step(rung), prices, most) for rung, chance in known)
        return max((max(of, default=0.0) for of in rates), default=0.0)

    def longest(self, rung: int, prices: Sequence[float], most: int) -> int:
        """Tokens of the shortest chain that has nearly the best chain's rate: of text that repeats
        itself, copies know only what was emitted.
        """
        rates = chain_rates(self.chance(rung), self.step(rung), prices, most)
        enough = NEARLY * max(rates, default=0.0)
        return next((n for n, rate in enumerate(rates, 1) if rate >= enough), 0)

    def explore_one(self, state: State, prices: Sequence[float], rate: float) -> float:
        """Does one ranking or trial if output and time allow; returns its price in passes."""
        if len(state.output) < self.window + 2 or self.explore <= 0:
            return 0.0
        rows = prices[min(self.window, len(prices) - 1)]
        ranks = not self.rank or self.trials % RANK_EVERY == RANK_EVERY - 1
        earned = self.explore * self.spent + CREDIT - self.explored
        tries = [self._trial_price(rung, rows) for rung in range(RUNGS)]
        if (rows if ranks else min(tries)) > earned:
            return 0.0
        reached = self.best(prices, rate, MAX_STEPS)[1] if self.low else BREAK_EVEN
        hopes = self._hopes(bool(self.low) and reached <= BREAK_EVEN)
        rung, value = self.best(prices, rate, MAX_STEPS, hopes)
        price = rows if ranks else tries[rung]
        if value <= max(BREAK_EVEN, reached) or price > earned:
            return 0.0
        self.explored += price
        self.trials += 1
        if ranks:
            turned = squared_turns(recent_states(state, self.window))
            self.rank = sorted(range(len(turned)), key=turned.__getitem__)
            self.turns = [sum(turned[i] for i in self.rank[:size]) for size in self.sizes]
            self.tried = [0] * RUNGS
            self.begin(*self._begun)
            return price
        at = state.lm.cache.length - self.window
        for hit in predicts(state, at, self.window, self.plans[rung]):
            self.agreement.update(rung, hit)
        self.tried[rung] += 1
        return price

    def _hopes(self, idle: bool) -> list[float]:
        """The highest agreement that each rung may still have; 0 for those of fewer bits with
        nothing left out unless they are `idle`, as their drafts are their trials.
        """
        doubts = [TRIED_DOUBT / tried**0.5 if tried else DOUBT for tried in self.tried]
        hopes = [min(MAX_AGREEMENT, self.chance(rung) + d) for rung, d in enumerate(doubts)]
        return [
            hopes[0] if idle else 0.0,
            *(hopes[1:] if self.rank else [MAX_AGREEMENT] * (RUNGS - 1)),
        ]

    def _trial_price(self, rung: int, rows: float) -> float:
        """Price of a trial, where as many rows in the model's own dtype cost `rows`."""
        return self.pass_price(rung, self.window) if self.low else rows * self.steps[rung]


def squared_turns(hidden_states: Sequence[Tensor]) -> list[float]:
    """The turn of the state in each sub-layer, `2 (1 - cos)`, about the angle's square, in the
    mean over the rows of S + 1 states [rows, D]: twice the Block Influence of Men et al., ShortGPT
    (2024, arXiv:2403.03853), here per sub-layer and not per layer.
    """
    x = torch.stack(list(hidden_states)).float()
    cosine = torch.cosine_similarity(x[:-1], x[1:], dim=-1).mean(-1)
    return (2 * (1 - cosine)).clamp_min(0).tolist()
