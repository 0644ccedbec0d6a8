"""The most likely tokens of many rows at once on a CPU: by `top_k.c`, or by numpy, whose searches
are vectorised: torch's take several times as long.
"""

import ctypes
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skipbench.contrib.cpu.elementwise import function_of
from skipbench.decode import sampling

GROUP = 64  # entries of a row of which the largest is found first
LOW = 0xFFFFFFFF  # bits of a key that hold the index
INFINITY = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}
"""Bits by type; above them are NaNs, and below them the numbers above zero in their order."""


def best_tokens(logits: Tensor) -> Tensor:
    """`sampling.best_tokens` on a CPU."""
    table = native_top_k(logits, 0)
    if table is not None and min(table) >= [0]:
        return torch.tensor(table)[:, 0]
    return torch.from_numpy(logits.float().numpy().argmax(-1))


def choices(logits: Tensor, k: int) -> tuple[list[int], list[list[int]]] | None:
    """`sampling.choices` on a CPU; `None` of other numbers than `INFINITY` has.

    By numpy it is on the bits of the numbers: to read each of them twice takes less time than a few
    more calls.
    """
    if (table := native_top_k(logits, k)) is not None:
        return [row[0] for row in table], [row[1:] for row in table] if k else []
    if logits.dtype not in INFINITY:
        return None
    wide, infinity = logits.dtype == torch.float32, INFINITY[logits.dtype]
    bits = logits.view(torch.int32 if wide else torch.int16).numpy()
    top = largest(bits, k).tolist() if k else [[best] for best in bits.argmax(-1).tolist()]
    values = [(bits[row, best[0]], bits[row, best[-1]]) for row, best in enumerate(top)]
    unsigned = bits.reshape(-1).view(f"u{bits.itemsize}")
    if not (
        all(last > 0 and first < infinity for first, last in values)
        # a NaN with a sign lies above all others
        and int(unsigned[unsigned.argmax()]) <= infinity | 1 << 8 * bits.itemsize - 1
    ):
        # the bits of a negative number order the other way
        ordered = bits ^ ((bits >> 15 + 16 * wide) & bits.dtype.type(LOW >> 1 + 16 * (not wide)))
        return sampling.finite_best(logits).tolist(), largest(ordered, k).tolist() if k else []
    if k > 1 and any(first == last for first, last in values):  # the first may be in no group
        return bits.argmax(-1).tolist(), top
    return [best[0] for best in top], top if k else []


def two_best(logits: Tensor, of_all: bool) -> list[tuple[int, float, float]]:
    """Of every row of [T, V] the likeliest token, its probability and that of the second one;
    without `of_all` both as shares of the first, which needs no sum over the vocabulary.
    """
    if not of_all and (found := native_two_best(logits)) is not None:
        return [(int(best), math.exp(p - p), math.exp(q - p)) for best, p, q in found]
    on_host = logits.device.type == "cpu"
    ids = torch.tensor(sampling.choices(logits, 2)[1]) if on_host else logits.topk(2).indices
    top = logits.gather(1, ids)
    whole = logits.float().logsumexp(-1, keepdim=True) if of_all else top[:, :1]
    # doubles hold every index, so that all comes to the host at once
    rows = torch.cat([part.double() for part in (ids, top, whole)], 1).tolist()
    return [(int(best), math.exp(p - all_), math.exp(q - all_)) for best, _, p, q, all_ in rows]


def native_two_best(logits: Tensor) -> list[tuple[float, float, float]] | None:
    """Per row of [T, V], V > 1, the index of the largest, it, and the next one."""
    if (two_best := function_of(logits, "two_best")) is None:
        return None
    logits = logits.contiguous()
    rows, vocabulary = logits.shape
    found = (ctypes.c_float * (3 * rows))()
    two_best(found, logits.data_ptr(), rows, vocabulary)
    values = iter(found)
    return list(zip(values, values, values, strict=True))


def native_top_k(logits: Tensor, k: int) -> list[list[int]] | None:
    """Indices of the `k` largest per row of [T, V], the largest first, of equal ones the first;
    before them that of the largest, or -1 where it is not finite or the row has a NaN.
    """
    if (top_k := function_of(logits, "top_k")) is None:
        return None
    logits = logits.contiguous()
    (rows, vocabulary), width = logits.shape, k + 1
    index = (ctypes.c_int32 * (rows * width))()
    top_k(index, logits.data_ptr(), rows, vocabulary, k)
    return [index[at : at + width] for at in range(0, rows * width, width)]


def largest(values: NDArray[np.signedinteger], k: int) -> NDArray[np.int64]:
    """Indices [T, k] of the `k` largest entries of every row of [T, V], the largest first.

    They are in the `k` groups of entries whose largest are largest, so that one vectorised pass
    over all entries is enough; torch's topk on a CPU takes several times as long.
    """
    rows, size = values.shape
    groups = size // GROUP
    start = np.arange(0, rows * size, size)[:, None]
    if groups <= k:
        index = start + np.arange(size)
    else:  # group g holds the entries g, g + groups, g + 2 * groups, ...
        whole = groups * GROUP
        tops = np.maximum.reduce(values[:, :whole].reshape(rows, GROUP, groups), axis=1)
        best = _first(tops, np.arange(groups), k) + start
        index = (best[:, :, None] + np.arange(0, whole, groups)).reshape(rows, -1)
        if whole < size:
            index = np.concatenate((index, start + np.arange(whole, size)), 1)
    return _first(values.reshape(-1).take(index), index, k) - start


def _first(
    values: NDArray[np.signedinteger], index: NDArray[np.int64], k: int
) -> NDArray[np.int64]:
    """Entries of `index` at the `k` largest values of each row, of equal ones the first."""
    keys = (values.astype(np.int64) << 32) - index
    if keys.shape[1] > k:
        keys.partition(keys.shape[1] - k, axis=1)
    best = keys[:, -k:]
    best.sort(axis=1)
    return -best[:, ::-1] & LOW
