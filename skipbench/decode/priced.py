"""`RowPrices`: what the rows of a verification cost; `Priced`: a method that knows it."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

from skipbench.config.configurable import Configurable, PositiveFloat
from skipbench.decode.draft import State
from skipbench.decode.method import Method
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.metrics.prices import ROWS, curve, price_key
from skipbench.profile.rows import kept_seconds

Size = TypeVar("Size")


class RowPrices(Configurable):
    """Prices of the rows of a verification, measured unless they are given.

    >>> RowPrices(row_prices=[2, 2, 3, 4, 6, 8]).prices_at(State(None, [3, 1, 5]), 4)
    [0.0, 1.0, 1.0, 1.25, 1.5]
    """

    row_prices: Sequence[PositiveFloat] = ()
    """Seconds of verifying 1, 2, 4, 8, 16 and 32 rows; empty measures them."""

    carried: ClassVar[tuple[str, ...]] = ("measured",)
    needs_prices = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.row_prices and len(self.row_prices) != len(ROWS):
            raise SkipbenchError(
                f"{self.label}: row_prices={list(self.row_prices)}; wanted {len(ROWS)} positive "
                f"numbers, the seconds of {', '.join(map(str, ROWS))} rows, or none to measure them"
            )
        self.measured: dict[str, dict[str, float]] = {}
        """Seconds by rows, by class of the context's length and plan of a draft."""

    def prepare(self, state: State) -> None:
        if self.needs_prices:
            self.prices_at(state, 1)

    def prices_at(self, state: State, rows: int) -> list[float]:
        """Price of 0 to `rows` rows, in passes of one row: measured below 256 tokens of context,
        and again at every fourfold.
        """
        if self.row_prices:
            return curve(dict(zip(ROWS, self.row_prices, strict=True)), rows)
        return curve(self._seconds(state), rows)

    def _seconds(self, state: State, plan: DraftPlan | None = None) -> dict[int, float]:
        """`kept_seconds` at the present length, stored with the method."""
        key = price_key(state.lm.cache.length, plan)
        if key not in self.measured or key in state.lm.prices.passes:
            waits = bool(state.output)  # a prompt that is being decoded
            seconds = kept_seconds(state.lm, key, plan, waits)
            self.measured[key] = {str(n): s for n, s in seconds.items()}
        return {int(n): s for n, s in self.measured[key].items()}


class Priced(RowPrices, Method):
    """Base of methods that choose the size of their drafts by the price of rows.

    >>> method = Priced(name="mine", row_prices=[2, 2, 3, 4, 6, 8])
    >>> method.size_by_price(State(None, [3]), {"small": (1.3, 2), "large": (1.6, 4)})
    'small'
    """

    def size_by_price(self, state: State, sizes: Mapping[Size, tuple[float, float]]) -> Size:
        """Of the sizes, each with its tokens and mean rows per round, the one with the most tokens
        per pass.
        """
        prices = self.prices_at(state, ROWS[-1])
        return max(sizes, key=lambda size: sizes[size][0] / prices[round(sizes[size][1])])
