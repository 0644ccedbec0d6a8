"""`Priced`: a method or a stop rule that chooses by the prices of rounds."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from skipbench.config.configurable import Configurable, PositiveFloat
from skipbench.decode.draft import State
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.metrics.host import NO_HOST, Host
from skipbench.metrics.prices import ROWS, Curve, Latencies, Prices

Size = TypeVar("Size")


def given_prices(rows: Sequence[float], drafts: Mapping[int, float], variant: str = "") -> Prices:
    """Prices of given seconds of verifying `ROWS` rows; and of draft passes by a variant of the
    weights, by their rows.
    """
    curves = [Curve(0, {n: s / rows[0] for n, s in zip(ROWS, rows, strict=True)})]
    low = dict[str, Latencies]()
    if drafts:
        one = next(iter(drafts.values()))
        low[variant] = Latencies(0.0, 0.0, 0.0, one / rows[0], 1)
        curves.append(Curve(0, {n: s / one for n, s in drafts.items()}, variant))
    return Prices(model=Latencies(0.0, 0.0, 0.0, 1.0, 1, low), curves=curves)


class Priced(Configurable):
    """Prices of rounds by the rows that they verify: the model's own, or given ones.

    >>> Priced(row_prices=[2, 2, 3, 4, 6, 8]).prices_at(State(None, [3, 1, 5]), 4)
    [0.0, 1.0, 1.0, 1.25, 1.5]
    """

    row_prices: Sequence[PositiveFloat] = ()
    """Seconds of verifying 1, 2, 4, 8, 16 and 32 rows, the host's part left out; empty takes those
    that a run measures, with it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.row_prices and len(self.row_prices) != len(ROWS):
            raise SkipbenchError(
                f"{self.label}: row_prices={list(self.row_prices)}; wanted {len(ROWS)} positive "
                f"numbers, the seconds of {', '.join(map(str, ROWS))} rows, or none to measure them"
            )
        self.rows_given = given_prices(self.row_prices, {}) if self.row_prices else None

    def known(self, state: State) -> tuple[Prices, int, Host]:
        """The prices, the present length, and the host's part; none of it where they are given."""
        if self.rows_given:
            return self.rows_given, 0, NO_HOST
        return state.lm.prices, state.lm.cache.length, state.host

    def prices_at(self, state: State, rows: int) -> list[float]:
        """Price of rounds of 0 to `rows` rows, in those of one row."""
        prices, length, host = self.known(state)
        return prices.round_prices(rows, length, host)

    def step_price(self, state: State, plan: DraftPlan, given: Prices | None = None) -> float:
        """Price of a draft step in rounds of one row, by `given` or the model's prices."""
        host = self.known(state)[-1]
        return (given or state.lm.prices).step_price(state.lm.cache.length, plan, host)

    def size_by_price(self, state: State, sizes: Mapping[Size, tuple[float, float]]) -> Size:
        """Of the sizes, each with its tokens and mean rows per round, the one with the most tokens
        per second.

        >>> rule = Priced(row_prices=[2, 2, 3, 4, 6, 8])
        >>> rule.size_by_price(State(None, [3]), {"small": (1.3, 2), "large": (1.6, 4)})
        'small'
        """
        prices = self.prices_at(state, ROWS[-1])
        return max(sizes, key=lambda size: sizes[size][0] / prices[round(sizes[size][1])])
