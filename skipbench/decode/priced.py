"""`RowPrices`: what the rows of a verification cost, given or measured; `Priced`: a method that
knows it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import ClassVar, TypeVar

import torch

from skipbench.config.configurable import Configurable, PositiveFloat
from skipbench.decode.draft import State
from skipbench.decode.method import Method
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.metrics.host import NO_HOST, Host
from skipbench.metrics.lines import curve
from skipbench.metrics.prices import DRAFT_ROWS, MEASURED, ROWS, Prices, price_key
from skipbench.profile.clock import interleaved

Size = TypeVar("Size")
AGAIN = (1, 16, 17, 32)
"""Sizes that are measured again for longer contexts: the curve is known, and bends a little."""
REPEATS = 5
"""Turns of the first measurement: median ratios of SmolLM2 then vary by 1 % between processes."""


@torch.inference_mode()
def verification_seconds(
    lm: LM, rows: Sequence[int] = MEASURED, repeats: int = REPEATS
) -> dict[int, float]:
    """Seconds of verifying so many rows as a tree after the committed ones, by number of rows;
    `repeats` as of `paired_seconds`.

    Sizes that do not fit into the cache are left out. Scratch rows are overwritten.
    """
    start = lm.cache.length
    sizes = [n for n in rows if start + n <= lm.cache.capacity]
    trees = {n: TokenRows.tree(start, tuple((i - 1) // 2 for i in range(n))) for n in sizes}
    calls = {n: partial(lm.score, [0] * n, tree.verified()) for n, tree in trees.items()}
    return paired_seconds(calls, lm.output_device, repeats)


@torch.inference_mode()
def draft_seconds(lm: LM, plan: DraftPlan, repeats: int = REPEATS) -> dict[int, float]:
    """Seconds of a draft pass over so many chained rows, and under 0 of the full model's over one:
    `repeats` as of `paired_seconds`.
    """
    start = lm.cache.length
    calls = {0: partial(lm.score, [0], TokenRows.chain(start, 1).verified())}
    calls |= {n: partial(lm.logits, [0] * n, TokenRows.chain(start, n), plan) for n in DRAFT_ROWS}
    return paired_seconds(calls, lm.output_device, repeats)


def paired_seconds(
    calls: Mapping[int, Callable[[], object]], device: torch.device, repeats: int
) -> dict[int, float]:
    """Seconds of each call, from `repeats` interleaved turns: the least of the first call, times
    the median over turns of a call's ratio to it. What slows a whole turn does not change a ratio.
    """
    turns, first = interleaved(calls, device, repeats), next(iter(calls))
    least = min(turn[first] for turn in turns)
    return {n: least * median(turn[n] / turn[first] for turn in turns) for n in calls}


def kept_seconds(
    lm: LM, key: str, plan: DraftPlan | None = None, waits: bool = False
) -> dict[int, float]:
    """`draft_seconds`, or without a plan `verification_seconds`, measured once for `lm.prices` and
    a `price_key`; with fewer passes behind the first length where a prompt `waits` for them.
    """
    kept = lm.prices.passes
    if key not in kept:
        again = waits and any(of.partition(" ")[2] == key.partition(" ")[2] for of in kept)
        if plan is not None:
            seconds = draft_seconds(lm, plan, 1 if again else REPEATS)
        else:
            seconds = verification_seconds(lm, *((AGAIN, 1) if again else (MEASURED, REPEATS)))
        lm.prices.keep(key, seconds)
    return kept[key]


class RowPrices(Configurable):
    """Prices of rounds by the rows that they verify, measured unless they are given: of the pass,
    and of what the host does beside it.

    >>> RowPrices(row_prices=[2, 2, 3, 4, 6, 8]).prices_at(State(None, [3, 1, 5]), 4)
    [0.0, 1.0, 1.0, 1.25, 1.5]
    """

    row_prices: Sequence[PositiveFloat] = ()
    """Seconds of verifying 1, 2, 4, 8, 16 and 32 rows, the host's part left out; empty measures
    both.
    """
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
        """Price of rounds of 0 to `rows` rows, in those of one row: passes are measured below 256
        tokens of context, and again at every fourfold.
        """
        return curve(self.host(state).added(self.seconds(state)), rows)

    def host(self, state: State) -> Host:
        """What rounds take beside their passes; nothing where prices are given."""
        return NO_HOST if self.row_prices else state.host

    def step_price(self, state: State, plan: DraftPlan, given: Prices | None = None) -> float:
        """Price of a draft step in rounds of one row, its pass by `given` or the model's prices."""
        price = (given or state.lm.prices).step_price(state.lm.cache.length, plan)
        return self.host(state).step_price(price, self.pass_s(state))

    def pass_s(self, state: State) -> float:
        """Seconds of verifying one row."""
        return self.seconds(state)[1]

    def seconds(self, state: State) -> dict[int, float]:
        """Seconds of verifications by rows."""
        if self.row_prices:
            return dict(zip(ROWS, self.row_prices, strict=True))
        return self._seconds(state)

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
        per second.
        """
        prices = self.prices_at(state, ROWS[-1])
        return max(sizes, key=lambda size: sizes[size][0] / prices[round(sizes[size][1])])
