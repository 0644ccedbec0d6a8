"""The most likely tokens of many rows at once on a CPU, by `top_k.c`: torch's searches take several
times as long.
"""

import ctypes
import math

import torch
from torch import Tensor

from skipbench.contrib.cpu.elementwise import function_of
from skipbench.decode import sampling


def best_tokens(logits: Tensor) -> Tensor | None:
    """`sampling.best_tokens` on a CPU; `None` where a row has none that is finite, or no kernel."""
    table = top_k(logits, 0)
    return torch.tensor(table)[:, 0] if table and min(table) >= [0] else None


def choices(logits: Tensor, k: int) -> tuple[list[int], list[list[int]]] | None:
    """`sampling.choices` on a CPU; `None` without a kernel."""
    if (table := top_k(logits, k)) is None:
        return None
    return [row[0] for row in table], [row[1:] for row in table] if k else []


def two_best(logits: Tensor, of_all: bool) -> list[tuple[int, float, float]]:
    """Of every row of [T, V] the likeliest token, its probability and that of the second one;
    without `of_all` both as shares of the first, which needs no sum over the vocabulary.
    """
    function = None if of_all else function_of(logits, "two_best")
    if function is not None:
        logits = logits.contiguous()
        found = (ctypes.c_float * (3 * len(logits)))()
        function(found, logits.data_ptr(), *logits.shape)
        values = iter(found)
        triples = zip(values, values, values, strict=True)
        return [(int(best), math.exp(p - p), math.exp(q - p)) for best, p, q in triples]
    on_host = logits.device.type == "cpu"
    ids = torch.tensor(sampling.choices(logits, 2)[1]) if on_host else logits.topk(2).indices
    top = logits.gather(1, ids)
    whole = logits.float().logsumexp(-1, keepdim=True) if of_all else top[:, :1]
    # doubles hold every index, so that all comes to the host at once
    rows = torch.cat([part.double() for part in (ids, top, whole)], 1).tolist()
    return [(int(best), math.exp(p - all_), math.exp(q - all_)) for best, _, p, q, all_ in rows]


def top_k(logits: Tensor, k: int) -> list[list[int]] | None:
    """Indices of the `k` largest per row of [T, V], the largest first, of equal ones the first;
    before them that of the largest, or -1 where it is not finite or the row has a NaN.
    """
    if (function := function_of(logits, "top_k")) is None:
        return None
    logits, width = logits.contiguous(), k + 1
    index = (ctypes.c_int32 * (len(logits) * width))()
    function(index, logits.data_ptr(), *logits.shape, k)
    return [index[at : at + width] for at in range(0, len(index), width)]
