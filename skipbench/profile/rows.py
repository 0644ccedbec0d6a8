"""Curves of `Prices`: passes of several rows, timed in turns with one of one row."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

import torch

from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.metrics.prices import DRAFT_ROWS, Curve
from skipbench.profile.clock import timed

MEASURED = (1, 2, 4, 8, 16, 17, 32)
"""Rows of a verification, with the first one behind a block of 16, as kernels multiply them."""
REPEATS = 5
"""Timed turns: median ratios of SmolLM2 then vary by 1 % between processes."""


@torch.inference_mode()
def verification_curve(lm: LM, context: int, rows: Sequence[int] = MEASURED) -> Curve:
    """Verifications of trees of so many rows after `context` tokens, those that fit into the cache.
    Scratch rows are overwritten.
    """
    sizes = [n for n in rows if context + n <= lm.cache.capacity]
    trees = {n: TokenRows.tree(context, tuple((i - 1) // 2 for i in range(n))) for n in sizes}
    calls = {n: partial(lm.score, [0] * n, tree.verified()) for n, tree in trees.items()}
    return Curve(context, paired_ratios(calls, lm.output_device))


@torch.inference_mode()
def draft_curve(lm: LM, context: int, variant: str) -> tuple[Curve, float]:
    """Draft passes over chained rows by a variant of the weights, nothing left out; and that of one
    row over one of the full model.
    """
    plan = DraftPlan(lm.layers, variant=variant)
    calls = {0: partial(lm.score, [0], TokenRows.chain(context, 1).verified())}
    calls |= {n: partial(lm.logits, [0] * n, TokenRows.chain(context, n), plan) for n in DRAFT_ROWS}
    ratios = paired_ratios(calls, lm.output_device)
    return Curve(context, {n: ratios[n] / ratios[1] for n in DRAFT_ROWS}, variant), ratios[1]


def paired_ratios(
    calls: Mapping[int, Callable[[], object]], device: torch.device
) -> dict[int, float]:
    """Seconds of each call over those of the first one: medians over turns, so that what slows a
    whole turn changes nothing. Each is timed after one of its own kind, as in decoding: behind a
    pass of 32 rows, one of a row finds other things in the processor's caches.
    """

    def again(call: Callable[[], object]) -> float:
        call()
        return timed(call, device)

    turns = [{n: again(call) for n, call in calls.items()} for _ in range(1 + REPEATS)]
    first = next(iter(calls))
    return {n: median(turn[n] / turn[first] for turn in turns[1:]) for n in calls}
