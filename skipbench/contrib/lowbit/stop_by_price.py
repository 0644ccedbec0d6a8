"""`ByPrice`: a chain of draft steps ends where the next ones cost more than they promise."""

from dataclasses import field

from skipbench.config.configurable import Positive
from skipbench.contrib.lowbit.chances import Counters, chain_value
from skipbench.decode.draft import State
from skipbench.decode.drafting import CONFIDENCE_CLASSES
from skipbench.decode.priced import Priced
from skipbench.decode.stopping import StopRule
from skipbench.draft_plan import DraftPlan
from skipbench.metrics.prices import Prices

CHANCES = (0.6, 0.8, 0.95, 0.99, 0.9)
"""Before a try: the chance of a token by the class of its confidence, last that of any token."""
ANY = len(CHANCES) - 1
WEIGHT, DECAY = 8.0, 0.99  # drafted tokens that these count for, and that are remembered: 100
RATE_SHARE = 0.05  # of the newest round in the rate
IDLE = 32  # rounds without a draft after which one token is tried


class ByPrice(Priced, StopRule):
    """Drafts on while that raises the tokens per second, as `auto` does (docs/auto.md).

    Behind tokens whose chances multiply to P, a chain of m more is worth `P (a + ... + a^m) - rho
    (m c + C(n + m) - C(n))`: a is the share of drafted tokens that are accepted, c the measured
    price of a draft step, C(n) that of a round of n rows, with what the host does beside both, rho
    the present tokens per round of one row. The draft ends where no m is worth anything. All of it
    is counted while decoding: chances by class of confidence, the last 100 tokens most.

    >>> rule = ByPrice(row_prices=[1, 1.02, 1.04, 1.1, 1.2, 1.4])
    >>> rule.step, rule.prices = 0.5, rule.prices_at(None, 17)
    >>> rule.begin_draft(), [rule.ends(confidence) for confidence in (0.99, 0.97, 0.4)]
    (16, [False, False, True])
    >>> rule.step = 1.0  # a draft step takes as long as a pass
    >>> rule.begin_draft()
    0
    """

    max_steps: Positive = 16
    threshold: float = field(default=0.0, init=False)

    needs_latency, reads_confidence, ends_at_eos = True, True, True
    carried = ("rate", "counters", "idle")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rate, self.counters, self.idle = 1.2, Counters(CHANCES, WEIGHT, DECAY), 0
        self.step, self.prices = 1.0, list[float]()
        self._classes: list[int] = []
        self._chance = 1.0

    def priced(self, state: State, plan: DraftPlan, given: Prices | None) -> None:
        self.step = self.step_price(state, plan, given)
        self.prices = self.prices_at(state, self.max_steps + 1)

    def _pays(self) -> bool:
        """Whether a chain of more tokens is worth its price."""
        rate, n = max(1.0, self.rate) / self._chance, len(self._classes)
        prices = self.prices[n:]
        value = chain_value(self.counters.chance(ANY), self.step, prices, rate, self.max_steps)
        return value > -rate * prices[1]

    def begin_draft(self) -> int:
        self._classes, self._chance = [], 1.0
        return self.max_steps if self._pays() else int(self.idle % IDLE == IDLE - 1)

    def ends(self, confidence: float) -> bool:
        self._classes.append(sum(confidence > bound for bound in CONFIDENCE_CLASSES))
        self._chance *= self.counters.chance(self._classes[-1])
        return not self._pays()

    def update(self, accepted: int, drafted: int) -> None:
        if not self.prices:  # the method has not drafted with passes yet
            return
        self.idle = 0 if drafted else self.idle + 1
        for n in range(min(drafted, accepted + 1)):
            self.counters.update(ANY, n < accepted)
            if n < len(self._classes):
                self.counters.update(self._classes[n], n < accepted)
        price = drafted * self.step + self.prices[1 + drafted]
        self.rate += RATE_SHARE * ((accepted + 1) / price - self.rate)
