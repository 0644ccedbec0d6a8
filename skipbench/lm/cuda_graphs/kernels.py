"""Triton kernels of `ops`, imported where one is launched.

Letters of shapes as in `lm.llama`; N: tile of cache rows, M: tile of query rows of a key head, W:
attention windows of a model. Numbers are float32 inside, and rounded where torch's operators round.
"""

import contextlib
import os

import triton
import triton.language as tl

from skipbench.config.paths import cache_folder
from skipbench.config.trust import private_folder
from skipbench.draft_plan import SINKS

with contextlib.suppress(OSError):  # Triton loads what it finds there; its own may be open to all
    os.environ.setdefault("TRITON_CACHE_DIR", str(private_folder(cache_folder() / "triton")))

HEAD_ROWS: tl.constexpr = tl.constexpr(SINKS)
LOWEST: tl.constexpr = tl.constexpr(-3e38)  # below every masked score, and finite


@triton.jit
def silu_times(gate_up: tl.tensor, out: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr) -> None:
    """`gate_up` [R, 2 F] -> `out` [R, F]; a program per row and block."""
    row, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up + row * 2 * width + at, at < width, 0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * width + at, at < width, 0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + at, (silu * up).to(out.dtype.element_ty), at < width)


@triton.jit
def _turned(
    heads: tl.tensor, cos: tl.tensor, sin: tl.tensor, norm: tl.tensor, eps: tl.tensor,
    known: tl.tensor, at: tl.tensor, d: tl.constexpr, NORMED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Heads at their positions, float32 with the bits of the model's dtype.

    heads, cos, sin: pointers [T, 1] to one head or row of tables each. known: [T, 1], those that
    are read. at: numbers of a head, [1, D].
    """
    dtype = heads.dtype.element_ty
    inside = known & (at < d)
    other = (at + d // 2) % d
    x = tl.load(heads + at, inside, 0.0).to(tl.float32)
    turned = tl.load(heads + other, inside, 0.0).to(tl.float32)
    if NORMED:
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 1)[:, None] / d + eps)
        weight = tl.load(norm + at, at < d, 0.0).to(tl.float32)
        x = (x * scale * weight).to(dtype).to(tl.float32)
        weight = tl.load(norm + other, at < d, 0.0).to(tl.float32)
        turned = (turned * scale * weight).to(dtype).to(tl.float32)
    x = (x * tl.load(cos + at, inside, 0.0).to(tl.float32)).to(dtype).to(tl.float32)
    return (x + turned * tl.load(sin + at, inside, 0.0).to(tl.float32)).to(dtype).to(tl.float32)


@triton.jit
def rotate_and_write(
    qkv: tl.tensor, cos: tl.tensor, sin: tl.tensor, target: tl.tensor, cache: tl.tensor,
    query: tl.tensor, q_norm: tl.tensor, k_norm: tl.tensor, q_eps: tl.tensor, k_eps: tl.tensor,
    q_heads: tl.tensor, kv: tl.tensor, d: tl.constexpr, NORMED: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """`qkv` [R, H + 2 KV, d] -> `query` [R, H, d], and `cache` [_, 2 KV, d] at `target` [R]; a
    program per row and head.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, BLOCK_D)[None, :]
    column = tl.zeros([1, 1], tl.int32)  # makes pointers of one head [1, 1]
    here = qkv + (row * (q_heads + 2 * kv) + head) * d + column
    cos, sin = cos + row * d + column, sin + row * d + column
    known = column == 0
    if head < q_heads:
        x = _turned(here, cos, sin, q_norm, q_eps, known, at, d, NORMED)
        tl.store(query + (row * q_heads + head) * d + at, x.to(query.dtype.element_ty), at < d)
    else:
        if head < q_heads + kv:
            x = _turned(here, cos, sin, k_norm, k_eps, known, at, d, NORMED)
        else:
            x = tl.load(here + at, at < d, 0.0).to(tl.float32)
        line = tl.load(target + row) * 2 * kv + head - q_heads
        tl.store(cache + line * d + at, x.to(cache.dtype.element_ty), at < d)


@triton.jit
def prepare(
    bounds: tl.tensor, depth: tl.tensor, tree_mask: tl.tensor, windows: tl.tensor,
    all_cos: tl.tensor, all_sin: tl.tensor, target: tl.tensor, used: tl.tensor, cos: tl.tensor,
    sin: tl.tensor, masks: tl.tensor, rows: tl.tensor, group: tl.tensor, size: tl.tensor,
    positions: tl.tensor, d: tl.constexpr, low: tl.tensor,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """`GraphBuffers.input_preparation`; a program per block of columns, row and window."""
    block, row, kind = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, context_len = tl.load(bounds), tl.load(bounds + 1)
    position = tl.minimum(tl.load(depth + row) + context_len, positions - 1)
    if block == 0 and kind == 0:
        tl.store(target + row, tl.load(bounds + 2) + row)
        at = tl.arange(0, BLOCK_D)
        tl.store(cos + row * d + at, tl.load(all_cos + position * d + at, at < d, 0.0), at < d)
        tl.store(sin + row * d + at, tl.load(all_sin + position * d + at, at < d, 0.0), at < d)
        if row == 0:
            tl.store(used, (start + rows).to(tl.int32))
    column = block * BLOCK + tl.arange(0, BLOCK)
    of = column - start  # of the rows of this pass
    inside = (of >= 0) & (of < rows)
    of = tl.where(inside, of, 0)
    ancestor = tl.load(tree_mask + row * rows + of, inside, 0) != 0
    there = tl.minimum(tl.load(depth + of, inside, 0) + context_len, positions - 1)
    distance = position - tl.where(inside, there, column)
    near = (column < HEAD_ROWS) | (column >= HEAD_ROWS + tl.load(bounds + 3))
    sees = (((column < context_len) & near) | (ancestor & inside)) & (
        distance < tl.load(windows + kind)
    )
    bias = tl.where(sees, 0.0, low).to(masks.dtype.element_ty)
    for head in range(group):
        line = ((kind * group + head) * rows + row).to(tl.int64) * size
        tl.store(masks + line + column, bias, column < size)


@triton.jit
def _attend(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, bias: tl.tensor, scale: tl.tensor, best: tl.tensor,
    total: tl.tensor, out: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """One more tile of keys `k` [D, N] and values `v` [N, D] in a running softmax."""
    score = tl.dot(q, k, input_precision="ieee") * scale + bias
    now = tl.maximum(best, tl.max(score, 1))
    share = tl.exp(score - now[:, None])
    kept = tl.exp(best - now)
    out = out * kept[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
    return now, total * kept + tl.sum(share, 1), out


@triton.jit
def attend_parts(
    qkv: tl.tensor, cos: tl.tensor, sin: tl.tensor, target: tl.tensor, bounds: tl.tensor,
    mask: tl.tensor, cache: tl.tensor, parts: tl.tensor, log_sums: tl.tensor, q_norm: tl.tensor,
    k_norm: tl.tensor, q_eps: tl.tensor, k_eps: tl.tensor, scale: tl.tensor, rows: tl.tensor,
    d: tl.constexpr, size: tl.tensor, GROUP: tl.constexpr, NORMED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """Attention of all query heads of a key head over one part of the cache rows before `start`,
    without those that a draft's window hides, and in the last part over the rows of this pass too,
    whose keys and values it writes.

    qkv, cache: as in `rotate_and_write`. mask: [R, size], additive. parts, log_sums: softmaxes
    [splits, R, H, d] and logarithms of their sums [splits, R, H], to be joined by `join_parts`.
    A program per part, key head and tile of query rows (the R rows of one query head after the
    other).
    """
    split, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits, kv = tl.num_programs(0), tl.num_programs(1)
    q_heads = kv * GROUP
    dtype = qkv.dtype.element_ty
    width = (q_heads + 2 * kv) * d
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row, q_head, known = m % rows, head * GROUP + m // rows, m < GROUP * rows
    at = tl.arange(0, BLOCK_D)[None, :]
    tables = (row * d)[:, None]
    here = qkv + (row * width + q_head * d)[:, None]
    known = known[:, None]
    q = _turned(here, cos + tables, sin + tables, q_norm, q_eps, known, at, d, NORMED).to(dtype)
    best = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    start = tl.load(bounds).to(tl.int32)
    hidden = tl.load(bounds + 3).to(tl.int32)  # rows
    each = tl.cdiv(tl.cdiv(start - hidden, BLOCK_N), splits) * BLOCK_N
    last = tl.minimum((split + 1) * each, start - hidden)
    sees = mask + (row * size)[:, None]
    for n in range(split * each, last, BLOCK_N):
        place = n + tl.arange(0, BLOCK_N)  # among the rows that are seen
        column = place + tl.where(place < HEAD_ROWS, 0, hidden)
        line = (cache + (column.to(tl.int64) * 2 * kv + head) * d)[:, None] + at
        inside = (place < last)[:, None] & (at < d)
        k = tl.load(line, inside, 0.0)
        v = tl.load(line + kv * d, inside, 0.0)
        bias = tl.load(sees + column[None, :], (place < last)[None, :], float("-inf"))
        best, total, out = _attend(q, tl.trans(k), v, bias.to(tl.float32), scale, best, total, out)
    if split == splits - 1:
        own = tl.arange(0, BLOCK_R)
        own_known, own_tables = (own < rows)[:, None], (own * d)[:, None]
        of = qkv + (own * width + (q_heads + head) * d)[:, None]
        key = _turned(
            of, cos + own_tables, sin + own_tables, k_norm, k_eps, own_known, at, d, NORMED
        )
        key = key.to(dtype)
        value = tl.load(of + kv * d + at, own_known & (at < d), 0.0)
        if tile == 0:
            to = cache + ((tl.load(target + own, own < rows, 0) * 2 * kv + head) * d)[:, None] + at
            tl.store(to, key, own_known & (at < d))
            tl.store(to + kv * d, value, own_known & (at < d))
        seen = ((own < rows) & (start + own < size))[None, :]
        own_bias = tl.load(sees + (start + own)[None, :], seen, float("-inf")).to(tl.float32)
        best, total, out = _attend(q, tl.trans(key), value, own_bias, scale, best, total, out)
    place = (split * rows + row) * q_heads + q_head
    out = out / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(parts + (place * d)[:, None] + at, out, known & (at < d))
    tl.store(log_sums + place, best + tl.log(total), m < GROUP * rows)


@triton.jit
def join_parts(
    parts: tl.tensor, log_sums: tl.tensor, out: tl.tensor, splits: tl.tensor, d: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R * H, d] of what `attend_parts` made; a program per row and query head."""
    line, lines = tl.program_id(0), tl.num_programs(0)
    s, at = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)[None, :]
    log_sum = tl.load(log_sums + s * lines + line, s < splits, float("-inf"))
    share = tl.exp(log_sum - tl.maximum(tl.max(log_sum, 0), LOWEST))
    share = share / tl.maximum(tl.sum(share, 0), 1e-30)
    inside = (s < splits)[:, None] & (at < d)
    part = tl.load(parts + ((s * lines + line) * d)[:, None] + at, inside, 0.0)
    joined = tl.sum(part * share[:, None], 0)[None, :]
    tl.store(out + line * d + at, joined.to(out.dtype.element_ty), at < d)
