"""Operators of torch for attention whose bits for a row do not depend on the rows beside it.

The text is cut into splits of a fixed size, at positions 0 .. SPLIT - 1 and so on. A split is one
product of 16 queries with its keys and one with its values, whether it is read for all rows of a
pass or, from the end of the committed text on, for each row along its own path through the pass.

`bounds`: [3] of int64 on the device: `start`, `context_len` and the first cache row written.
"""

import torch
from torch import Tensor
from torch.library import custom_op

from skipbench.lm.cuda_graphs.ops import device_of

MAX_ROWS = 128  # of a pass; wider ones are bound by arithmetic, not launches: without graphs
PATH = 256  # positions of a row's path: of a split, and of a pass
CHUNK = 16  # splits that are added at once
TILE = 16  # query rows of a product
LONGEST = 1 << 30  # positions of a window; no text is longer


def split_size(dtype: torch.dtype, d: int) -> int:
    """Positions of a split: so many that a tile stays in registers and shared memory."""
    return 128 >> ((dtype.itemsize == 4) + (d > 128))


def partial_bytes(size: int, heads: int, d: int, dtype: torch.dtype) -> int:
    """Of what `attend_splits` makes of MAX_ROWS rows over `size` positions before it is joined."""
    return -(-size // split_size(dtype, d)) * MAX_ROWS * heads * (d + 1) * 4


def warps(dtype: torch.dtype) -> int:
    """Warps of a program of `attend_splits`."""
    return 8 if dtype.itemsize == 4 else 4


def _block(d: int) -> int:
    """Numbers of a head in a tile: a power of 2, and as many as a product needs."""
    return max(16, 1 << (d - 1).bit_length())


@custom_op("skipbench::place", mutates_args=("target", "cos", "sin", "paths"), device_types="cuda")
def place(
    bounds: Tensor, depth: Tensor, tree_mask: Tensor, all_cos: Tensor, all_sin: Tensor,
    target: Tensor, cos: Tensor, sin: Tensor, paths: Tensor, split: int,
) -> None:  # fmt: skip
    """Fills what depends on the places of a pass: `target` to `paths`.

    Args:
        depth: [R] positions of the rows after the context.
        tree_mask: [R, R] of bool, true where a row sees another: itself and its ancestors.
        all_cos, all_sin: rotary tables [P, 1, d] of all positions; later ones take the last.
        target: [R] cache rows that are written.
        cos, sin: [R, 1, d] tables of the rows.
        paths: [R, PATH] of int32: entry `j` is the cache row that holds position `base + j` of a
            row's text, -1 for none; `base`: where the split begins that holds position
            `context_len`.
        split: `split_size` of the model.
    """
    from skipbench.lm.cuda_graphs import attention_triton

    rows, (positions, _, d) = len(depth), all_cos.shape
    assert rows <= MAX_ROWS and split + MAX_ROWS <= PATH
    with device_of(paths):
        attention_triton.place[(rows,)](
            bounds, depth, tree_mask, all_cos, all_sin, target, cos, sin, paths, rows, positions,
            d, SPLIT=split, PATH=PATH, TILE=TILE, BLOCK_D=_block(d),
        )  # fmt: skip


@custom_op("skipbench::attend_splits", mutates_args=(), device_types="cuda")
def attend_splits(
    query: Tensor, cache: Tensor, bounds: Tensor, depth: Tensor, paths: Tensor, size: int,
    window: int, scale: float,
) -> Tensor:  # fmt: skip
    """Attention of `query` [R, H, d] at their positions over `cache` [_, 2 KV, d], where the keys
    and values of the pass are already: [R, H * d].

    Args:
        depth, paths: as in `place`.
        size: positions that are read at most; rows behind them get what is before.
        window: positions that a row sees, the last one its own.
    """
    from skipbench.lm.cuda_graphs import attention_triton

    (rows, heads, d), kv = query.shape, cache.shape[1] // 2
    split, block_d, group = split_size(query.dtype, d), _block(d), heads // kv
    splits = -(-size // split)
    outs = query.new_empty(splits, rows, heads, d, dtype=torch.float32)
    log_sums = outs.new_empty(splits, rows, heads)
    out = query.new_empty(rows, heads * d)
    # tiles of the splits of all rows, and of those that may hold a position of the pass
    tiles = splits * -(-rows * group // TILE)
    tiles += ((split + rows - 2) // split + 1) * rows * -(-group // TILE)
    with device_of(query):
        attention_triton.attend_splits[tiles, kv](
            query, cache, bounds, depth, paths, outs, log_sums, scale, min(window, LONGEST), rows,
            splits, d, GROUP=group, SPLIT=split, PATH=PATH, TILE=TILE, BLOCK_D=block_d,
            num_warps=warps(query.dtype),
        )  # fmt: skip
        attention_triton.join[rows, heads](
            outs, log_sums, bounds, depth, out, splits, d,
            SPLIT=split, CHUNK=CHUNK, BLOCK_D=block_d, num_warps=4,
        )  # fmt: skip
    return out
