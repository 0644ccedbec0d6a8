"""`AutoPrices`: what rounds and draft passes of `auto` cost on this machine."""

from collections.abc import Sequence
from dataclasses import field

from skipbench.config.configurable import Positive, PositiveFloat, Share
from skipbench.contrib.auto.ladder import VARIANT, PlanLadder
from skipbench.decode.draft import State
from skipbench.decode.priced import Priced
from skipbench.errors import SkipbenchError
from skipbench.lm.engine import Engine
from skipbench.metrics.lines import curve
from skipbench.metrics.prices import DRAFT_ROWS
from skipbench.profile.roofline import bytes_price


class AutoPrices(Priced):
    """Base of `Auto`. All prices are in rounds that verify one row, with what the host does."""

    layers: Positive
    max_nodes: Positive = 31
    """Maximum nodes of a tree; prices usually keep it smaller."""
    window: Positive = 24
    """Output tokens that a skip set is tried on."""
    explore: Share = 0.01
    """Share of the time for trying skip sets, besides four passes at the start; 0 drafts by no plan
    at all, and copies alone.
    """
    draft_prices: Sequence[PositiveFloat] = ()
    """Seconds of a draft pass of 1 and 4 rows in 8 bits, beside `row_prices`, which else leave
    these out; empty, and no `row_prices`, measures them where they may pay.
    """
    ladder: PlanLadder = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.draft_prices) not in (0, len(DRAFT_ROWS) if self.row_prices else 0):
            raise SkipbenchError(
                f"{self.label}: draft_prices={list(self.draft_prices)}; wanted {len(DRAFT_ROWS)} "
                f"positive numbers, the seconds of {' and '.join(map(str, DRAFT_ROWS))} rows, "
                "beside row_prices"
            )
        self.ladder = PlanLadder(self.layers, self.window, self.explore)

    @property
    def variant(self) -> str:
        drafts = self.explore > 0 and (self.draft_prices or not self.row_prices)
        return VARIANT if drafts else ""

    def variant_on(self, engine: Engine) -> str:
        """Where it has no kernel, nothing is drafted with it."""
        return self.variant if engine.fast(VARIANT) else ""

    def prepare(self, state: State) -> None:
        self.prices = self.prices_at(state, self.max_nodes + 1)
        self.low = self._draft_prices(state)

    def _draft_prices(self, state: State) -> list[float]:
        """Price of 0, 1, ... rows drafted in fewer bits; empty where they cannot pay, or the engine
        has none.
        """
        if not self.variant:
            return []
        host = self.host(state)
        if self.row_prices:
            given = self.row_prices[0], *self.draft_prices
            seconds = dict(zip((0, *DRAFT_ROWS), given, strict=True))
        else:
            lm = state.lm
            least = host.step_price(bytes_price(lm), self.pass_s(state))
            if not (lm.engine.fast(VARIANT) and self.ladder.may_pay(least, self.prices)):
                return []
            seconds = self._seconds(state, self.ladder.plan())
        drafted = {n: seconds[n] + host.step_s for n in DRAFT_ROWS}
        of_one = drafted[1] / (seconds[0] + host.beside_s(1))
        prices = [of_one * p for p in curve(drafted, max(self.window, DRAFT_ROWS[-1]))]
        return prices if self.ladder.may_pay(of_one, self.prices) else []
