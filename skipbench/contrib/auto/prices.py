"""`AutoPrices`: prices of rounds and draft passes of `auto`."""

from collections.abc import Sequence
from dataclasses import field

from skipbench.config.configurable import Positive, PositiveFloat, Share
from skipbench.contrib.auto.ladder import VARIANT, PlanLadder
from skipbench.decode.draft import State
from skipbench.decode.method import Method
from skipbench.decode.priced import Priced, given_prices
from skipbench.errors import SkipbenchError
from skipbench.lm.engine import Engine
from skipbench.lm.rows import TokenRows
from skipbench.metrics.prices import DRAFT_ROWS


class AutoPrices(Priced, Method):
    """Base of `Auto`. All prices are in rounds that verify one row, with the host's part."""

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
    these out; empty, and no `row_prices`, takes those that a run measures.
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
        if self.draft_prices:
            drafts = dict(zip(DRAFT_ROWS, self.draft_prices, strict=True))
            self.rows_given = given_prices(self.row_prices, drafts, VARIANT)
        self.ladder = PlanLadder(self.layers, self.window, self.explore)

    @property
    def variant(self) -> str:
        drafts = self.explore > 0 and (self.draft_prices or not self.row_prices)
        return VARIANT if drafts else ""

    def variant_on(self, engine: Engine) -> str:
        """Where it has no kernel, nothing is drafted with it."""
        return self.variant if engine.fast(VARIANT) else ""

    def prepare(self, state: State) -> None:
        """Makes the copy of the weights that its drafts read."""
        self.take_prices(state)
        if self.low:
            rows = TokenRows.chain(state.lm.cache.length, 1)
            state.lm.logits([state.pending], rows, self.ladder.plan())

    def take_prices(self, state: State) -> None:
        """Sets the prices of rounds and of draft passes to those of the present length."""
        self.prices, self.low = self.prices_at(state, self.max_nodes + 1), list[float]()
        if self.rows_given or self.variant_on(state.lm.engine):
            prices, length, host = self.known(state)
            most = max(self.window, DRAFT_ROWS[-1])
            low = prices.draft_prices(most, VARIANT, length, host)
            if low and self.ladder.may_pay(low[1], self.prices):
                self.low = low
