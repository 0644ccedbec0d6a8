"""KnapSpec with choices (ours): each sub-layer of a draft in full, in 8 or 4 bits, or left out, and
its attention over the whole context or a window.

KnapSpec (methods/knapspec.py) leaves sub-layers out, as items of a 0/1 knapsack. Here every
sub-layer is a class of a multiple-choice knapsack: an item's weight is its measured price, its loss
how much that choice alone turns the state. A dynamic programme per window gives all plans that no
other undercuts; the one with the highest expected tokens per second drafts.

| KnapSpec | here | |
|---|---|---|
| X^(i) | `x[i]` [r, D] | target's states of the last r tokens, in one pass |
| w_Attn, w_MLP | `prices[s][c]` | nanoseconds of choice c of sub-layer s |
| cosine of a branch to X | `losses[s][c]` | 2 (1 - cos) of the state after the choice, summed |
| g[i, j] | `Front` | plans of sub-layers 1 to i: none is both cheaper and of less loss |
| Eqs. 4 and 9 | `rates`, `_agreement` | tokens per second, by the share of r tokens predicted |
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from skipbench.config.configurable import Natural, Positive
from skipbench.decode.draft import State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.sampling import best_tokens
from skipbench.decode.trial_passes import recent_states
from skipbench.draft_plan import VARIANTS, DraftPlan
from skipbench.lm.rows import TokenRows
from skipbench.metrics.prices import Prices

FULL, OUT = "", "out"  # choices besides `VARIANTS`
WINDOWS: tuple[dict[str, Any], ...] = ({"window": 512},)
"""Besides the whole context, what a plan's attention may read, as `DraftPlan.cheaper` takes it."""
SCALES = (0.5, 2.0, 8.0, 32.0)
"""`-ln agreement / loss` for which a plan is tried: what fewer bits and skipping cost differs."""
LENGTHS = range(1, 11)  # draft lengths whose tokens per second are compared, KnapSpec's D


class Front(NamedTuple):
    """The plans that no other undercuts, the cheapest first: prices and losses [n], and the number
    of the choice of each sub-layer [n, S].
    """

    prices: NDArray[np.float64]
    losses: NDArray[np.float64]
    chosen: NDArray[np.int64]


def undercut_by_none(prices: Sequence[Sequence[float]], losses: Sequence[Sequence[float]]) -> Front:
    """The multiple-choice knapsack, exact: for every price the choices of least total loss.

    Args:
        prices, losses: per class, those of its items. An infinite loss is never chosen.

    >>> front = undercut_by_none([[2, 1], [2, 0]], [[0.0, 0.5], [0.0, 3.0]])
    >>> front.prices.tolist(), front.losses.tolist(), front.chosen.tolist()
    ([1.0, 2.0, 3.0, 4.0], [3.5, 3.0, 0.5, 0.0], [[1, 1], [0, 1], [1, 0], [0, 0]])
    """
    front, kept = np.zeros((1, 2)), list[NDArray[np.int64]]()
    for items in map(np.transpose, zip(prices, losses, strict=True)):
        # every plan of the classes before, with every item
        plans = (front[:, None] + items).reshape(-1, 2)
        order = np.lexsort((plans[:, 1], plans[:, 0]))
        loss = plans[order, 1]
        order = order[loss < np.append(np.inf, np.minimum.accumulate(loss)[:-1])]
        front = plans[order]
        kept.append(order)
    chosen, plan = list[NDArray[np.int64]](), np.arange(len(front))
    for order, of in zip(reversed(kept), reversed(prices), strict=True):
        plan, item = np.divmod(order[plan], len(of))
        chosen.append(item)
    return Front(front[:, 0], front[:, 1], np.stack(chosen[::-1], 1))


def rates(
    agreement: ArrayLike, step_s: ArrayLike, verify_s: Sequence[float]
) -> NDArray[np.float64]:
    """Tokens per second [n] of drafts with these agreements and seconds of a step [n], each with
    its best length; `verify_s`: of 1, 2, ... drafted tokens.
    """
    agreement, step_s = np.asarray(agreement)[:, None], np.asarray(step_s)[:, None]
    steps = np.arange(1, len(verify_s) + 1)
    tokens = 1 + np.cumsum(agreement**steps, 1)
    found: NDArray[np.float64] = (tokens / (steps * step_s + verify_s)).max(1)
    return found


def best_of(
    fronts: Sequence[Front], scale: float, head_s: float, verify_s: Sequence[float]
) -> tuple[int, list[int]]:
    """Of all plans of all fronts the one with the highest tokens per second where the agreement is
    `exp(-scale * loss)`: the number of its front, and its choices.
    """
    values = [rates(np.exp(-scale * f.losses), 1e-9 * f.prices + head_s, verify_s) for f in fronts]
    best = max(range(len(fronts)), key=lambda n: float(values[n].max()))
    return best, fronts[best].chosen[values[best].argmax()].tolist()


def choice_ns(prices: Prices, choices: Sequence[str], positions: float) -> list[list[int]]:
    """Nanoseconds of each choice of every sub-layer, where attention reads so many positions: whole
    ones, so that sums in any order are equal.
    """
    layer = [
        [0 if c == OUT else round(1e9 * prices.part_s(part, 1, positions, c)) for c in choices]
        for part in ("attention", "mlp")
    ]
    return layer * prices.layers


class KnapSpecChoices(SkipMethod):
    """A new plan every `interval` rounds; all in 8 bits before the first."""

    interval: Positive = 128
    """Rounds between two programmes, counted across prompts."""
    window: Positive = 24
    """r, tokens that a programme uses."""
    first: Natural = 16
    """Rounds of the first programme."""

    needs_latency = True
    variants_if_fast = frozenset({"int4"})
    logged = ("optimised", "agreement", "tpt")
    carried = ("skip", "due")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.skip = DraftPlan.of(self.layers).cheaper(
            "int8", self.kv_window or None, self.head, self.kv_guided
        )
        self.due = self.first

    @property
    def variants(self) -> frozenset[str]:
        return super().variants | {"int8"}

    def adapt(self, state: State, verification: Verification) -> None:
        super().adapt(state, verification)
        self.due -= 1
        if self.due <= 0 and state.finish is None and len(state.tokens) > self.window + 1:
            self.optimise(state)
            self.due = self.interval

    def optimise(self, state: State) -> None:
        """Sets `skip` to the best plan for the last `window` cached tokens."""
        prices, length = state.lm.prices, state.lm.cache.length
        if prices.model is None:
            return  # without prices there is nothing to choose
        choices = [FULL, *(name for name in VARIANTS if name in prices.priced), OUT]
        x = recent_states(state, self.window)
        wanted = best_tokens(state.lm.head(x[-1]))
        verify_s = [prices.pass_s(1 + n, length) for n in LENGTHS]
        head_s = prices.part_s("head", 1, length, self.head.removeprefix("full"))
        windows = self._windows(length)
        fronts = self._fronts(state, x, choices, windows)
        tried = dict[DraftPlan, float]()
        for scale in SCALES:
            front, chosen = best_of(fronts, scale, head_s, verify_s)
            plan = self._plan([choices[c] for c in chosen], windows[front])
            if plan not in tried:
                tried[plan] = self._agreement(state, plan, wanted)
        steps = [prices.pass_s(1, length, plan) for plan in tried]
        values = rates([*tried.values()], steps, verify_s)
        self.skip = [*tried][values.argmax()]
        shares = [[str(plan), round(a, 4)] for plan, a in tried.items()]
        self.note(optimised=len(self.draft_log["steps"]), agreement=shares)
        self.note(tpt=float(values.max()))

    def _windows(self, length: int) -> list[dict[str, Any]]:
        """Those of `WINDOWS` that hide something, or that of the settings alone."""
        if self.kv_window:
            return [{"window": self.kv_window, "guided": self.kv_guided}]
        whole = DraftPlan.of(self.layers)
        hide = (w for w in WINDOWS if whole.cheaper(**w).positions_read(length) < length)
        return [{}, *hide]

    def _plan(self, chosen: Sequence[str], window: dict[str, Any]) -> DraftPlan:
        skipped = frozenset(s for s, name in enumerate(chosen) if name == OUT)
        changed = frozenset((s, name) for s, name in enumerate(chosen) if name in VARIANTS)
        return DraftPlan(self.layers, skipped, changed).cheaper(head=self.head, **window)

    def _rows(self, state: State) -> TokenRows:
        end = state.lm.cache.length
        return TokenRows.chain(end, self.window, context_len=end - self.window)

    def _fronts(
        self,
        state: State,
        x: Sequence[torch.Tensor],
        choices: Sequence[str],
        windows: Sequence[dict[str, Any]],
    ) -> list[Front]:
        """A programme per window, by the losses on the target's states."""
        lm, rows = state.lm, state.lm.metadata(self._rows(state))
        whole, fronts = DraftPlan.of(lm.layers), list[Front]()

        @cache
        def loss(s: int, choice: str, plan: DraftPlan) -> float:
            if plan.whole and choice != OUT:
                return 0.0
            made = x[s] if choice == OUT else lm.run(x[s], rows, plan, first=s, last=s + 1)
            after, wanted = made.to(x[s].device).float(), x[s + 1].float()
            cosine = torch.cosine_similarity(after, wanted, dim=-1).mean()
            return float(2 * (1 - cosine).clamp_min(0))

        for window in windows:
            # no MLP sees a window
            plans = [
                [whole.cheaper("" if c == OUT else c, **of) for c in choices] for of in (window, {})
            ]
            losses = [
                [loss(s, *pair) for pair in zip(choices, plans[s % 2], strict=True)]
                for s in range(lm.sublayers)
            ]
            positions = whole.cheaper(**window).positions_read(lm.cache.length)
            price = choice_ns(lm.prices, choices, positions)
            fronts.append(undercut_by_none(price, losses))
        return fronts

    def _agreement(self, state: State, plan: DraftPlan, wanted: torch.Tensor) -> float:
        """Eq. 9: the share of the last tokens that a plan predicts as the target does, with one
        more hit and miss: few tokens prove no certainty.
        """
        end = state.lm.cache.length
        tokens = state.tokens[end - self.window : end]
        hits = best_tokens(state.lm.logits(tokens, self._rows(state), plan)) == wanted
        return (int(hits.sum()) + 1) / (self.window + 2)
