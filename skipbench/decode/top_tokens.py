"""The target's most likely tokens of every verified row, in one transfer."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skipbench.decode.sampling import best_tokens

GROUP = 64  # entries of a row of which the largest is found first


def choices(logits: Tensor, k: int = 0) -> tuple[list[int], list[list[int]]]:
    """The most likely token of every row of [T, V], -1 where its logit is not finite; and the `k`
    most likely ones, most likely first, at most V of them.
    """
    best = best_tokens(logits)
    best = best.masked_fill(~logits.gather(-1, best[:, None])[:, 0].isfinite(), -1)
    k = min(k, logits.shape[-1])
    if k == 0:
        return best.tolist(), []
    if logits.device.type != "cpu":
        table = torch.cat((best[:, None], logits.topk(k).indices), 1).tolist()
        return [row[0] for row in table], [row[1:] for row in table]
    return best.tolist(), largest(_ordered(logits), k).tolist()


def _ordered(logits: Tensor) -> NDArray[np.generic]:
    """The rows as numbers that numpy compares at full speed, in the order of the logits."""
    if logits.dtype != torch.bfloat16:
        found: NDArray[np.generic] = logits.numpy()
        return found
    bits: NDArray[np.int16] = logits.view(torch.int16).numpy()
    # the bits of a negative number order the other way
    return bits ^ ((bits >> 15) & np.int16(0x7FFF))


def largest(values: NDArray[np.generic], k: int) -> NDArray[np.intp]:
    """Indices [T, k] of the `k` largest entries of every row of [T, V], the largest first.

    They stand in the `k` groups of entries whose largest are largest, so that one vectorised pass
    over all entries is enough; torch's topk on a CPU takes ten times as long.
    """
    rows, size = values.shape
    groups = size // GROUP
    if groups <= k:
        index = np.broadcast_to(np.arange(size), (rows, size))
    else:  # group g holds the entries g, g + groups, g + 2 * groups, ...
        tops = values[:, : groups * GROUP].reshape(rows, GROUP, groups).max(1)
        best = np.argpartition(tops, groups - k, axis=1)[:, groups - k :]
        inside = (np.arange(GROUP)[:, None] * groups + best[:, None, :]).reshape(rows, -1)
        behind = np.broadcast_to(np.arange(groups * GROUP, size), (rows, size - groups * GROUP))
        index = np.concatenate((inside, behind), 1)
    found = np.take_along_axis(values, index, 1)
    kept = np.argpartition(found, found.shape[1] - k, axis=1)[:, found.shape[1] - k :]
    order = np.argsort(np.take_along_axis(found, kept, 1), axis=1)[:, ::-1]
    return np.take_along_axis(index, np.take_along_axis(kept, order, 1), 1)
