"""KnapSpec with choices (ours): each sub-layer of a draft in full, in 8 bits, or left out.

KnapSpec (methods/knapspec.py) leaves sub-layers out, as items of a 0/1 knapsack. Here every
sub-layer is a class of a multiple-choice knapsack with three items: its weight is the measured
price, its value how little the choice turns the state. A dynamic programme gives the plan that
turns it least for every price; the one with the highest expected tokens per second drafts.

| KnapSpec | here | |
|---|---|---|
| X^(i) | `x[i]` [r, D] | target's states of the last r tokens, in one pass |
| w_Attn, w_MLP | `weights[s][c]` | price of choice c of sub-layer s, integers |
| cosine of a branch to X | `losses[s][c]` | 2 (1 - cos) of the state after the choice, summed |
| g[i, j] | `best[j]` | least loss of sub-layers 1 to i at price j |
| Eqs. 4 and 9 | `tpt`, `_agreement` | tokens per second, by the share of r tokens predicted |
"""

import math
from collections.abc import Sequence
from functools import partial

import torch

from skipbench.config.configurable import Natural, Positive
from skipbench.contrib.auto.ladder import VARIANT
from skipbench.decode.draft import State, Verification
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.sampling import best_tokens
from skipbench.decode.trial_passes import recent_states
from skipbench.draft_plan import DraftPlan
from skipbench.lm.rows import TokenRows
from skipbench.metrics.formulas import tpt
from skipbench.metrics.prices import Prices

FULL, INT8, OUT = range(3)
UNITS = 512  # of weight in a whole pass without its head
SCALES = (0.5, 2.0, 8.0, 32.0)
"""`-ln agreement / loss` for which a plan is tried: what 8 bits and skipping cost differs."""
LENGTHS = range(1, 11)  # draft lengths whose TPT is compared, KnapSpec's D


def choose(
    weights: Sequence[Sequence[int]], losses: Sequence[Sequence[float]]
) -> list[tuple[float, tuple[int, ...]]]:
    """The multiple-choice knapsack: for every total weight the choices of least total loss.

    Args:
        weights, losses: per class, those of its items; weights of 0 or more. An infinite loss is
            never chosen.

    Returns:
        Per weight from 0 to the largest possible one, the least loss of exactly that weight (inf
        where there is none) and an item per class.

    >>> choose([[2, 1], [2, 0]], [[0.0, 0.5], [0.0, 3.0]])[3]
    (0.5, (1, 0))
    """
    size = sum(map(max, weights)) + 1
    best = torch.full((size,), math.inf, dtype=torch.float64)
    best[0], chosen = 0.0, []
    for of, costs in zip(weights, losses, strict=True):
        # row c: item c is taken, the classes before it weigh the rest
        options = torch.full((len(of), size), math.inf, dtype=torch.float64)
        for c, (weight, loss) in enumerate(zip(of, costs, strict=True)):
            options[c, weight:] = best[: size - weight] + loss
        best, item = options.min(0)
        chosen.append(item)
    plans, at = list[list[int]](), torch.arange(size)
    for of, item in zip(reversed(weights), reversed(chosen), strict=True):
        taken = item[at.clamp_min(0)]
        plans.append(taken.tolist())
        at = at - torch.tensor(of)[taken]
    return list(zip(best.tolist(), zip(*reversed(plans), strict=True), strict=True))


class KnapSpecChoices(SkipMethod):
    """A new plan every `interval` rounds; all in 8 bits before the first."""

    interval: Positive = 128
    """Rounds between two programmes, counted across prompts."""
    window: Positive = 24
    """r, tokens that a programme uses."""
    first: Natural = 16
    """Rounds of the first programme."""

    needs_latency = True
    logged = ("optimised", "agreement", "tpt")
    carried = ("skip", "due")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.skip, self.due = self._plan([INT8] * (2 * self.layers)), self.first

    @property
    def variants(self) -> frozenset[str]:
        return super().variants | {VARIANT}

    def _plan(self, chosen: Sequence[int]) -> DraftPlan:
        of = {c: frozenset(s for s, other in enumerate(chosen) if other == c) for c in (INT8, OUT)}
        window, head = self.kv_window or None, self.head
        return DraftPlan(self.layers, of[OUT], of[INT8], VARIANT, window, head, self.kv_guided)

    def adapt(self, state: State, verification: Verification) -> None:
        super().adapt(state, verification)
        self.due -= 1
        if self.due <= 0 and state.finish is None and len(state.tokens) > self.window + 1:
            self._optimise(state)
            self.due = self.interval

    def _optimise(self, state: State) -> None:
        prices, length = state.lm.prices, state.lm.cache.length
        if prices.model is None or VARIANT not in prices.priced:
            return  # without prices there is nothing to choose
        x = recent_states(state, self.window)
        losses = self._losses(state, x)
        wanted = best_tokens(state.lm.head(x[-1]))
        weights = integer_weights(prices, length)
        plans = choose(weights, losses)
        tried = dict.fromkeys(self._plan(best_of(plans, scale)) for scale in SCALES)
        agreement = [self._agreement(state, plan, wanted) for plan in tried]
        target_s, draft_s = prices.pass_s(1, length), (prices.pass_s(1, length, p) for p in tried)
        values = [
            max(tpt(a, n, seconds, target_s) for n in LENGTHS)
            for a, seconds in zip(agreement, draft_s, strict=True)
        ]
        value = max(values)
        self.skip = list(tried)[values.index(value)]
        shares = [[str(plan), round(a, 4)] for a, plan in zip(agreement, tried, strict=True)]
        self.note(optimised=len(self.draft_log["steps"]), agreement=shares, tpt=value)

    def _rows(self, state: State) -> TokenRows:
        end = state.lm.cache.length
        return TokenRows.chain(end, self.window, context_len=end - self.window)

    def _losses(self, state: State, x: Sequence[torch.Tensor]) -> list[list[float]]:
        """Per sub-layer the loss of each choice, on the target's states."""
        lm, rows = state.lm, state.lm.metadata(self._rows(state))
        low = self._plan([INT8] * lm.sublayers)
        found = []
        for s in range(lm.sublayers):
            in8 = lm.run(x[s], rows, low, first=s, last=s + 1).to(x[s].device)
            pair = torch.stack((in8, x[s])).float()
            turned = 2 * (1 - torch.cosine_similarity(pair, x[s + 1].float()[None], dim=-1))
            found.append([0.0, *turned.mean(-1).clamp_min(0).tolist()])
        return found

    def _agreement(self, state: State, plan: DraftPlan, wanted: torch.Tensor) -> float:
        """Eq. 9: the share of the last tokens that a plan predicts as the target does, with one
        more hit and miss: few tokens prove no certainty.
        """
        end = state.lm.cache.length
        tokens = state.tokens[end - self.window : end]
        hits = best_tokens(state.lm.logits(tokens, self._rows(state), plan)) == wanted
        return (int(hits.sum()) + 1) / (self.window + 2)


def integer_weights(prices: Prices, context: float) -> list[list[int]]:
    """Prices of the choices of every sub-layer, in `UNITS` of a whole pass without its head."""
    part_s = partial(prices.part_s, rows=1, context=context)
    unit = (prices.pass_s(1, context) - part_s("head")) / UNITS
    each = [
        [*(round(part_s(part, variant=name) / unit) for name in ("", VARIANT)), 0]
        for part in ("attention", "mlp")
    ]
    return each * prices.layers


def best_of(plans: Sequence[tuple[float, tuple[int, ...]]], scale: float) -> tuple[int, ...]:
    """The choices with the highest TPT where the agreement is `exp(-scale * loss)`."""

    def value(weight: int) -> float:
        loss = plans[weight][0]
        step = max(weight, 1) / UNITS
        return max(tpt(math.exp(-scale * loss), n, step, 1.0) for n in LENGTHS)

    finite = [weight for weight, (loss, _) in enumerate(plans) if math.isfinite(loss)]
    return plans[max(finite, key=value)][1]
