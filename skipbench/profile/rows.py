"""Seconds of one verification by number of rows, after what the cache holds."""

from collections.abc import Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import torch

from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.metrics.costs import interpolate
from skipbench.profile.clock import timed

ROWS = (1, 2, 4, 8, 16, 32)
AGAIN = (1, 16, 32)
"""Sizes that are measured again for longer contexts: the curve is known, and bends a little."""
_KEPT: WeakKeyDictionary[LM, dict[int, dict[int, float]]] = WeakKeyDictionary()


@torch.inference_mode()
def verification_seconds(lm: LM, rows: Sequence[int] = ROWS, repeats: int = 3) -> dict[int, float]:
    """Seconds of verifying so many rows as a tree after the committed ones, by number of rows.

    Sizes that do not fit into the cache are left out. Scratch rows are overwritten.

    Args:
        rows: sizes to measure.
        repeats: timed passes per size, taken in turns, of which the fastest counts: other programs
            on a machine only add time.
    """
    start, device = lm.cache.length, lm.output_device
    calls = {}
    for n in rows:
        if start + n <= lm.cache.capacity:
            tree = TokenRows.tree(start, tuple((i - 1) // 2 for i in range(n)))
            calls[n] = partial(lm.score, [0] * n, tree.verified())
    turns = [{n: timed(call, device) for n, call in calls.items()} for _ in range(1 + repeats)]
    return {n: min(turn[n] for turn in turns[1:]) for n in calls}  # the first is a warm-up


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


def curve(seconds: Mapping[int, float], most: int) -> list[float]:
    """Price of 0 to `most` rows in passes of one row: linear between measured sizes, never falling;
    beyond the last size, the mean slope goes on.
    """
    line, highest = list[tuple[float, float]](), 1.0
    for rows, s in sorted(seconds.items()):
        highest = max(highest, s / seconds[min(seconds)])
        line.append((rows, highest))
    (first, one), (last, price) = line[0], line[-1]
    slope = (price - one) / max(1, last - first)
    inside = [interpolate(line, rows) for rows in range(1, min(most, int(last)) + 1)]
    return [0.0, *inside, *(price + (n - last) * slope for n in range(int(last) + 1, most + 1))]
