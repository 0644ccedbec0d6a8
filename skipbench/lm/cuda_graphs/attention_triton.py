"""Triton kernels of attention over splits of the text of a fixed size, whose bits for a row do not
depend on the other rows of its pass.

A position is that of a token in its text, not its cache row. Nothing that varies between passes is
specialized: each model has one compiled form of each kernel.
"""

import triton
import triton.language as tl

from skipbench.lm.cuda_graphs.kernels import LOWEST


@triton.jit(do_not_specialize=["rows", "positions"])
def place(
    bounds: tl.tensor, depth: tl.tensor, tree_mask: tl.tensor, all_cos: tl.tensor,
    all_sin: tl.tensor, target: tl.tensor, cos: tl.tensor, sin: tl.tensor, paths: tl.tensor,
    rows: tl.tensor, positions: tl.tensor, d: tl.constexpr, SPLIT: tl.constexpr,
    PATH: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """Targets [R], rotary tables [R, d] and paths [R, PATH] of a pass; a program per row."""
    row = tl.program_id(0)
    context_len, written = tl.load(bounds + 1).to(tl.int32), tl.load(bounds + 2).to(tl.int32)
    tl.store(target + row, (written + row).to(tl.int64))
    own = context_len + tl.load(depth + row).to(tl.int32)
    table, at = tl.minimum(own, positions - 1).to(tl.int64) * d, tl.arange(0, BLOCK_D)
    tl.store(cos + row * d + at, tl.load(all_cos + table + at, at < d, 0.0), at < d)
    tl.store(sin + row * d + at, tl.load(all_sin + table + at, at < d, 0.0), at < d)
    index = tl.arange(0, PATH)
    position = context_len // SPLIT * SPLIT + index
    path = tl.where(position < context_len, position, -1)
    for first in range(0, rows, TILE):
        other = first + tl.arange(0, TILE)
        inside = other < rows
        above = tl.load(tree_mask + row * rows + other, inside, 0) != 0
        there = context_len + tl.load(depth + other, inside, 0).to(tl.int32)
        found = (above & inside)[None, :] & (there[None, :] == position[:, None])
        path = tl.maximum(path, tl.max(tl.where(found, (written + other)[None, :], -1), 1))
    tl.store(paths + row * PATH + index, path)


@triton.jit
def _softmax(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, sees: tl.tensor, scale: tl.tensor
) -> tl.tensor:  # fmt: skip
    """`q` [16, D] over `k` and `v` [SPLIT, D]: a softmax, and the logarithm of its sum."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    score = tl.where(sees, score, float("-inf"))
    best = tl.maximum(tl.max(score, 1), LOWEST)
    share = tl.exp(score - best[:, None])
    total = tl.sum(share, 1)
    none = total == 0.0  # not where a score is no number
    some = tl.where(none, 1.0, total)
    out = tl.dot(share.to(v.dtype), v, input_precision="ieee") / some[:, None]
    return out, tl.where(none, float("-inf"), best + tl.log(some))


@triton.jit(do_not_specialize=["rows", "splits", "window"])
def attend_splits(
    query: tl.tensor, cache: tl.tensor, bounds: tl.tensor, depth: tl.tensor, paths: tl.tensor,
    outs: tl.tensor, log_sums: tl.tensor, scale: tl.tensor, window: tl.tensor, rows: tl.tensor,
    splits: tl.tensor, d: tl.constexpr, GROUP: tl.constexpr, SPLIT: tl.constexpr,
    PATH: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """Softmaxes `outs` [splits, R, H, d] over the positions of each split alone, and logarithms of
    their sums `log_sums` [splits, R, H], minus infinity (and no softmax) where a row sees none.

    A program per key head and tile of queries. Splits that end in the committed text serve all rows
    at once (`shared`: a tile has the R rows of one query head after the other); those from there on
    are read for each row, along its path, by the query heads of the key head. TILE: queries of a
    product.
    """
    index, head, kv = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    context_len = tl.load(bounds + 1).to(tl.int32)
    base = context_len // SPLIT * SPLIT
    row_tiles = rows * ((GROUP + TILE - 1) // TILE)
    all_tiles = tl.cdiv(rows * GROUP, TILE)
    shared = index < splits * all_tiles
    of_row = tl.maximum(index - splits * all_tiles, 0)
    split = tl.where(shared, index // all_tiles, base // SPLIT + of_row // row_tiles)
    tile = tl.where(shared, index % all_tiles, of_row % row_tiles)
    first = split * SPLIT
    if (split < splits) & ((first < base) | (shared == 0)):
        one = tl.where(shared, 0, tile % rows)  # the row of a tile of one
        m, lane = tile * TILE + tl.arange(0, TILE), tl.arange(0, TILE)
        row = tl.where(shared, m % rows, one)
        of_group = tl.where(shared, m // rows, tile // rows * TILE + lane)
        q_head, known = head * GROUP + of_group, of_group < GROUP
        place = ((split * rows + row) * kv * GROUP + q_head).to(tl.int64)
        # the first position of a row of this tile, or before it
        least = context_len + tl.where(shared, 0, tl.load(depth + one).to(tl.int32))
        unseen = (first > least) | (first + SPLIT <= least - window + 1)
        if unseen:
            tl.store(log_sums + place, tl.full([TILE], float("-inf"), tl.float32), known)
        else:
            at = tl.arange(0, BLOCK_D)[None, :]
            position = first + tl.arange(0, SPLIT)
            along = (shared == 0) & (position - base < PATH)
            line = tl.load(paths + one * PATH + position - base, along, -1)
            line = tl.where(shared, position, line)
            near = (line >= 0) & (position > least - window)
            line = tl.where(near, line, 0).to(tl.int64)
            key = (cache + (line * 2 * kv + head) * d)[:, None] + at
            k = tl.load(key, near[:, None] & (at < d), 0.0)
            v = tl.load(key + kv * d, near[:, None] & (at < d), 0.0)
            at_q = query + ((row * kv * GROUP + q_head) * d)[:, None] + at
            q = tl.load(at_q, known[:, None] & (at < d), 0.0)
            own = context_len + tl.load(depth + row).to(tl.int32)
            behind = own[:, None] - position[None, :]
            sees = near[None, :] & (behind >= 0) & (behind < window)
            out, log_sum = _softmax(q, k, v, sees, scale)
            tl.store(outs + (place * d)[:, None] + at, out, known[:, None] & (at < d))
            tl.store(log_sums + place, log_sum, known)


@triton.jit(do_not_specialize=["splits"])
def join(
    outs: tl.tensor, log_sums: tl.tensor, bounds: tl.tensor, depth: tl.tensor, out: tl.tensor,
    splits: tl.tensor, d: tl.constexpr, SPLIT: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, H, d] of what `attend_splits` made; a program per row and query head. The splits up
    to the row's position are added in order, in sums of CHUNK.
    """
    row, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    line, lines = row * heads + head, tl.num_programs(0) * heads
    position = (tl.load(bounds + 1) + tl.load(depth + row)).to(tl.int32)
    end = tl.minimum(position // SPLIT + 1, splits)
    each, at = tl.arange(0, CHUNK), tl.arange(0, BLOCK_D)[None, :]
    most = tl.full([CHUNK], LOWEST, tl.float32)
    for first in range(0, end, CHUNK):
        split = first + each
        found = tl.load(log_sums + split * lines + line, split < end, float("-inf"))
        most = tl.maximum(most, found)
    best = tl.max(most, 0)
    total = 0.0
    joined = tl.zeros([1, BLOCK_D], tl.float32)
    for first in range(0, end, CHUNK):
        split = first + each
        share = tl.load(log_sums + split * lines + line, split < end, float("-inf"))
        share = tl.exp(share - best)
        at_split = outs + ((split * lines + line).to(tl.int64) * d)[:, None] + at
        found = tl.load(at_split, (share != 0.0)[:, None] & (at < d), 0.0)
        total += tl.sum(share, 0)
        joined += tl.sum(found * share[:, None], 0)[None, :]
    joined /= tl.maximum(total, 1e-30)  # 0 where a row sees nothing
    tl.store(out + line * d + at, joined.to(out.dtype.element_ty), at < d)
