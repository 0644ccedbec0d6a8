"""The rows of a cache that a query pays most attention to."""

import torch
from torch import Tensor

from skipbench.draft_plan import SINKS

RECENT = 4  # one in so many rows of a window is among the newest, whatever attention they get


def newest(count: int) -> int:
    """How many of `count` rows are the newest."""
    return (count - SINKS) // RECENT


def copy_most_read(
    query: Tensor, rows: Tensor, out: Tensor, scale: float, window: int | None
) -> None:
    """Copies rows of a layer, keys and values, to `out` [count, 2 KV, d], for each key head its
    own: the first `SINKS`, the newest ones, and those that its query heads read most.

    Args:
        query: [H, d] at its position.
        rows: [N, 2 KV, d], those committed.
        scale: factor of the products of queries and keys.
        window: positions that the layer reads; `None` for all.
    """
    (length, both, d), count, kv = rows.shape, len(out), rows.shape[1] // 2
    asked, keys = query.view(kv, -1, d), rows[:, :kv].transpose(0, 1)
    score = torch.matmul(keys, (asked * scale).mT).mT.softmax(-1, torch.float32).sum(1)
    if window is not None:
        score[:, : max(0, length - window)] = 0.0
    score[:, :SINKS] = torch.inf
    score[:, length - newest(count) :] = torch.inf
    index = score.topk(count, sorted=False).indices.t().repeat(1, 2)
    index = index * both + torch.arange(both, device=index.device)
    torch.index_select(rows.view(-1, d), 0, index.flatten(), out=out.view(-1, d))
