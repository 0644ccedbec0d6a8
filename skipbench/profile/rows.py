"""Seconds of one verification by number of rows, after what the cache holds."""

from collections.abc import Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch

from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.profile.clock import timed

ROWS = (1, 2, 4, 8, 16, 32)
AGAIN = (1, 16, 32)
"""Sizes that are measured again for longer contexts: the curve is known, and bends a little."""
DRAFT_ROWS = (1, 4)
"""Rows of a draft pass: the last token, and with it what copies propose behind it."""
Kept = dict[tuple[int, str], dict[int, float]]
"""Seconds by rows, by class of context lengths and by plan, "" for verifications."""
_KEPT: WeakKeyDictionary[LM, Kept] = WeakKeyDictionary()


@torch.inference_mode()
def verification_seconds(lm: LM, rows: Sequence[int] = ROWS, repeats: int = 3) -> dict[int, float]:
    """Seconds of verifying so many rows as a tree after the committed ones, by number of rows, the
    fastest of `repeats` interleaved passes: other programs on a machine only add time.

    Sizes that do not fit into the cache are left out. Scratch rows are overwritten.
    """
    start, device = lm.cache.length, lm.output_device
    sizes = [n for n in rows if start + n <= lm.cache.capacity]
    trees = {n: TokenRows.tree(start, tuple((i - 1) // 2 for i in range(n))) for n in sizes}
    calls = {n: partial(lm.score, [0] * n, tree.verified()) for n, tree in trees.items()}
    turns = [{n: timed(call, device) for n, call in calls.items()} for _ in range(1 + repeats)]
    return {n: min(turn[n] for turn in turns[1:]) for n in calls}  # the first is a warm-up


@torch.inference_mode()
def draft_seconds(lm: LM, plan: DraftPlan, repeats: int = 3) -> dict[int, float]:
    """Seconds of a draft pass over so many chained rows, and under 0 of the full model's over one:
    the fastest of `repeats` interleaved passes.
    """
    start, device = lm.cache.length, lm.output_device
    calls = {n: partial(lm.logits, [0] * n, TokenRows.chain(start, n), plan) for n in DRAFT_ROWS}
    calls[0] = partial(lm.score, [0], TokenRows.chain(start, 1).verified())
    turns = [{n: timed(call, device) for n, call in calls.items()} for _ in range(1 + repeats)]
    return {n: min(turn[n] for turn in turns[1:]) for n in calls}


def keep_prices(lm: LM, kept: Kept) -> None:
    """What `kept_verification_seconds` measures from now on goes to `kept`, and is looked up there:
    arms that take turns on one model each pay for their own.
    """
    _KEPT[lm] = kept


def kept_seconds(lm: LM, length_class: int, plan: DraftPlan | None = None) -> dict[int, float]:
    """`draft_seconds`, or without a plan `verification_seconds`, measured once per model and class
    of context lengths; with fewer passes after the first class, because a prompt waits for them.
    """
    kept = _KEPT.setdefault(lm, {})
    if (key := (length_class, str(plan or ""))) not in kept:
        first = not any(of == key[1] for _, of in kept)
        if plan is not None:
            kept[key] = draft_seconds(lm, plan, 3 if first else 1)
        else:
            kept[key] = verification_seconds(lm, *((ROWS, 3) if first else (AGAIN, 1)))
    return kept[key]


def curve(seconds: Mapping[int, float], most: int) -> list[float]:
    """Price of 0 to `most` rows in passes of one row: linear between measured sizes, never falling;
    beyond the last size, the mean slope goes on.
    """
    sizes = sorted(seconds)
    prices = np.maximum.accumulate([seconds[n] / seconds[sizes[0]] for n in sizes])
    slope = (prices[-1] - prices[0]) / max(1, sizes[-1] - sizes[0])
    rows = np.arange(1, most + 1)
    beyond = slope * np.maximum(0, rows - sizes[-1])
    return [0.0, *(np.interp(rows, sizes, prices) + beyond).tolist()]
