"""Seconds of one verification by number of rows, behind what the cache holds."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import torch

from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

ROWS = (1, 2, 4, 8, 16, 32)
AGAIN = (1, 16, 32)
"""Sizes that are measured again for longer contexts: the curve is known, and bends a little."""
_KEPT: WeakKeyDictionary[LM, dict[int, dict[int, float]]] = WeakKeyDictionary()


@torch.inference_mode()
def verification_seconds(lm: LM, rows: Sequence[int] = ROWS, repeats: int = 3) -> dict[int, float]:
    """Seconds of verifying so many rows as a tree behind the committed ones, by number of rows.

    Sizes that the cache has no room for are left out. Scratch rows are overwritten.

    Args:
        rows: sizes to measure.
        repeats: timed passes per size, taken in turns, of which the fastest counts: what else runs
            on a machine only adds time.
    """
    start = lm.cache.length
    calls = {}
    for n in rows:
        if start + n <= lm.cache.capacity:
            tree = TokenRows.tree(start, tuple((i - 1) // 2 for i in range(n)))
            calls[n] = partial(lm.score, [0] * n, tree.verified())
    return _fastest(lm, calls, repeats)


def kept_verification_seconds(lm: LM, length_class: int) -> dict[int, float]:
    """`verification_seconds`, measured once per model and class of context lengths; all classes but
    the first with a quarter of the passes, because a prompt waits for them.
    """
    kept = _KEPT.setdefault(lm, {})
    if length_class not in kept:
        kept[length_class] = (
            verification_seconds(lm, AGAIN, repeats=1) if kept else verification_seconds(lm)
        )
    return kept[length_class]


def _fastest(
    lm: LM, calls: Mapping[int, Callable[[], torch.Tensor]], repeats: int
) -> dict[int, float]:
    found: dict[int, list[float]] = {n: [] for n in calls}
    for turn in range(1 + repeats):  # the first one is not timed
        for n, call in calls.items():
            if lm.output_device.type == "cuda":
                torch.cuda.synchronize(lm.output_device)
            began = time.perf_counter()
            logits = call()
            float(logits[0, 0])  # waits for the device
            if turn:
                found[n].append(time.perf_counter() - began)
    return {n: min(seconds) for n, seconds in found.items()}


def curve(seconds: dict[int, float], most: int) -> list[float]:
    """Price of 0 to `most` rows in passes of one row: linear between measured sizes, never
    falling; behind the last one, its slope over all goes on.
    """
    sizes = sorted(seconds)
    one = seconds[sizes[0]]
    prices = [max(1.0, seconds[n] / one) for n in sizes]
    for i in range(1, len(prices)):
        prices[i] = max(prices[i], prices[i - 1])
    slope = (prices[-1] - prices[0]) / max(1, sizes[-1] - sizes[0])
    found = [0.0]
    for rows in range(1, most + 1):
        at = next((i for i, n in enumerate(sizes) if n >= rows), None)
        if at is None:
            found.append(prices[-1] + (rows - sizes[-1]) * slope)
        elif at == 0:
            found.append(prices[0])
        else:
            low, high = sizes[at - 1], sizes[at]
            share = (rows - low) / (high - low)
            found.append(prices[at - 1] + share * (prices[at] - prices[at - 1]))
    return found
