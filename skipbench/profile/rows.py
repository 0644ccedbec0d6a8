"""Seconds of whole passes by number of rows, after what the cache holds."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

import torch

from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.metrics.prices import DRAFT_ROWS, MEASURED
from skipbench.profile.clock import interleaved

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
