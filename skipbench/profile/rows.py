"""Seconds of one verification by number of rows, after what the cache holds."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from weakref import WeakKeyDictionary

import numpy as np
import torch

from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.profile.clock import timed

ROWS = (1, 2, 4, 8, 16, 32)
MEASURED = (1, 2, 4, 8, 16, 17, 32)
"""As `ROWS`, with the first row behind a block of 16, as kernels multiply them."""
AGAIN = (1, 16, 17, 32)
"""Sizes that are measured again for longer contexts: the curve is known, and bends a little."""
DRAFT_ROWS = (1, 4)
"""Rows of a draft pass: the last token, and with it what copies propose behind it."""
ENOUGH = 8
"""Rounds near a size from which it is timed again."""
REPEATS = 5
"""Turns of the first measurement: median ratios of SmolLM2 then vary by 1 % between processes."""
Kept = dict[str, dict[int, float]]
"""Seconds by rows, by `price_key`."""
_KEPT: WeakKeyDictionary[LM, Kept] = WeakKeyDictionary()


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
    """Seconds of each call, from `repeats` interleaved turns after one that is not counted: the
    least of the first call, times the median over turns of a call's ratio to it. What slows a whole
    turn does not change a ratio.
    """
    turns = [{n: timed(call, device) for n, call in calls.items()} for _ in range(1 + repeats)][1:]
    first = next(iter(calls))
    least = min(turn[first] for turn in turns)
    return {n: least * median(turn[n] / turn[first] for turn in turns) for n in calls}


def keep_prices(lm: LM, kept: Kept) -> None:
    """What `kept_seconds` measures from now on goes to `kept`, and is looked up there: arms that
    take turns on one model each pay for their own.
    """
    _KEPT[lm] = kept


def price_key(length: int, plan: DraftPlan | None = None) -> str:
    """Name of the prices at a context length, by the first one that has them: 0, 256, and every
    fourfold; of a plan's draft passes, or without one of verifications.
    """
    fourfolds = max(0, length.bit_length() - 7) // 2
    return f"{64 * 4**fourfolds if fourfolds else 0}+ {plan or ''}".strip()


def known_prices(lm: LM) -> Kept:
    """What was measured of a model until now."""
    return _KEPT.setdefault(lm, {})


def kept_seconds(
    lm: LM, key: str, plan: DraftPlan | None = None, waits: bool = False
) -> dict[int, float]:
    """`draft_seconds`, or without a plan `verification_seconds`, measured once per model and
    `price_key`; with fewer passes behind the first length where a prompt `waits` for them.
    """
    kept = known_prices(lm)
    if key not in kept:
        again = waits and any(of.partition(" ")[2] == key.partition(" ")[2] for of in kept)
        if plan is not None:
            kept[key] = draft_seconds(lm, plan, 1 if again else REPEATS)
        else:
            kept[key] = verification_seconds(lm, *((AGAIN, 1) if again else (MEASURED, REPEATS)))
    return kept[key]


def time_again(lm: LM, key: str, rounds: Iterable[tuple[int, float]]) -> None:
    """Moves known prices of verifications half way to what `rounds` took, each its rows and its
    seconds: the median at every size that `ENOUGH` rounds were near, the others as their
    neighbours. Prices are ratios, so that less than two sizes change nothing.
    """
    if (seconds := known_prices(lm).get(key)) is None:
        return
    sizes, ratios = sorted(seconds), defaultdict[int, list[float]](list)
    expected = [seconds[n] for n in sizes]
    for rows, took in rounds:
        if sizes[0] <= rows <= sizes[-1]:
            size = min(sizes, key=lambda n: max(n / rows, rows / n))
            ratios[size].append(took / float(np.interp(rows, sizes, expected)))
    moved = {n: median(ratios[n]) for n in sizes if len(ratios[n]) >= ENOUGH}
    if len(moved) >= 2:
        logs = np.interp(np.log2(sizes), np.log2([*moved]), np.log2([*moved.values()]))
        halfway = zip(sizes, np.exp2(logs / 2), strict=True)
        known_prices(lm)[key] = {n: seconds[n] * float(factor) for n, factor in halfway}


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
