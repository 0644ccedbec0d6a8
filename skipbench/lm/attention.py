"""Query heads that share a key head, as rows of one product over their shared keys and values.

Letters of shapes: R rows, H query heads, KV key heads, G = H / KV, d size of a head.
"""

from torch import Tensor


def fold(query: Tensor, kv: int) -> Tensor:
    """[R, H, d] -> [1, KV, G * R, d]"""
    rows, heads, d = query.shape
    return (
        query.view(rows, kv, heads // kv, d)
        .permute(1, 2, 0, 3)
        .reshape(1, kv, heads // kv * rows, d)
    )


def unfold(out: Tensor, rows: int) -> Tensor:
    """[1, KV, G * R, d] or [KV, G * R, d] -> [R, H * d]"""
    kv, _, d = out.shape[-3:]
    return out.view(kv, -1, rows, d).permute(2, 0, 1, 3).reshape(rows, -1)
