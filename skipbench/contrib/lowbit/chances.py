"""Chances that drafted tokens are accepted, counted while decoding, and what chains are worth."""

import math
from collections.abc import Sequence

from skipbench.config.configurable import Stateful

UNTRIED = 0.0, 0.0  # hits and tries of a kind
MAX_STEPS = 16  # of a chain


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


def chain_value(
    agreement: float, step: float, prices: Sequence[float], rate: float, budget: int
) -> float:
    """Largest `sum_i a^i - rate * (n step + C(1 + n))` over chains of n >= 1 draft steps."""
    best, expected, chance = -math.inf, 0.0, 1.0
    for n in range(1, min(budget, MAX_STEPS, len(prices) - 2) + 1):
        chance *= agreement
        expected += chance
        best = max(best, expected - rate * (n * step + prices[1 + n]))
        if chance * agreement <= rate * step:  # prices of rows never fall
            break
    return best


def chain_rates(agreement: float, step: float, prices: Sequence[float], most: int) -> list[float]:
    """Tokens per pass of chains of 1, 2, ... draft steps, the bonus among them, as far as they may
    rise.
    """
    rates, tokens, chance, best = list[float](), 1.0, agreement, 0.0
    for n in range(1, min(most, MAX_STEPS, len(prices) - 2) + 1):
        tokens += chance
        chance *= agreement
        rates.append(rate := tokens / (n * step + prices[1 + n]))
        best = max(best, rate)
        if chance <= best * step:  # no longer chain has a higher rate
            break
    return rates
