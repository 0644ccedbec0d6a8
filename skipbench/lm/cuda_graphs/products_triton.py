"""Triton kernels of `products`, imported where one is launched.

R: rows of a pass, in blocks of 16; K: inputs, summed in blocks of BLOCK_K in order, whatever R; N:
outputs. Nothing that depends on R chooses a variant of a kernel: a row has the same bits in every
pass. With PDL (programmatic dependent launch) a kernel begins while the one before it ends, and
reads nothing but weights before `gdc_wait`.
"""

import triton
import triton.language as tl

from skipbench.lm.cuda_graphs import kernels as kernels  # it chooses the folder of Triton's cache

ROWS: tl.constexpr = tl.constexpr(16)  # of a block
AHEAD: tl.constexpr = tl.constexpr(8)  # cache lines of each output's weights, fetched before a wait
LINE: tl.constexpr = tl.constexpr(128)  # bytes of a cache line


@triton.jit
def _product(
    x: tl.tensor, line: tl.tensor, norm: tl.tensor, eps: tl.tensor, row: tl.tensor,
    rows: tl.tensor, inputs: tl.constexpr, NORMED: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PDL: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Products [16, BLOCK_N] of the rows `row` [16] of `x` and weights that begin at `line`
    [BLOCK_N, 1], float32.

    With NORMED of the RMS norms of the rows: the weight of the norm goes into `x`, its scale behind
    the product.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        size: tl.constexpr = line.dtype.element_ty.primitive_bitwidth // 8
        ahead = tl.minimum(tl.arange(0, AHEAD) * (LINE // size), inputs - 1)[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [line + ahead],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        tl.extra.cuda.gdc_wait()
    known = (row < rows)[:, None]
    here = x + row[:, None] * inputs
    if BLOCK_N >= 64:  # the faster order of the two where one warp group multiplies 64 outputs
        total = tl.zeros([BLOCK_N, ROWS], tl.float32)
    else:
        total = tl.zeros([ROWS, BLOCK_N], tl.float32)
    squares = tl.zeros([ROWS, BLOCK_K], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)[None, :]
        if inputs % BLOCK_K == 0:
            w = tl.load(line + at)
            v = tl.load(here + at, known, 0.0)
        else:
            w = tl.load(line + at, at < inputs, 0.0)
            v = tl.load(here + at, known & (at < inputs), 0.0)
        if NORMED:
            wide = v.to(tl.float32)
            squares += wide * wide
            v = (wide * tl.load(norm + at, at < inputs, 0.0).to(tl.float32)).to(v.dtype)
        if BLOCK_N >= 64:
            total = tl.dot(w, tl.trans(v), total, input_precision="ieee")
        else:
            total = tl.dot(v, tl.trans(w), total, input_precision="ieee")
    if BLOCK_N >= 64:
        total = tl.trans(total)
    if NORMED:
        total *= 1.0 / tl.sqrt(tl.sum(squares, 1)[:, None] / inputs + eps)
    return total


@triton.jit(do_not_specialize=["rows"])
def linear(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, norm: tl.tensor, out: tl.tensor,
    eps: tl.tensor, rows: tl.tensor, outputs: tl.tensor, inputs: tl.constexpr,
    BIASED: tl.constexpr, NORMED: tl.constexpr, ADDED: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """`x` [R, K], `weight` [N, K] -> `out` [R, N], to which it is added where ADDED; a program per
    block of outputs and block of rows.
    """
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    line = weight + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * inputs
    total = _product(x, line, norm, eps, row, rows, inputs, NORMED, BLOCK_N, BLOCK_K, PDL)
    here = out + row[:, None] * outputs + n[None, :]
    inside = (row < rows)[:, None] & (n < outputs)[None, :]
    if BIASED:
        total += tl.load(bias + n, n < outputs, 0.0).to(tl.float32)[None, :]
    if ADDED:
        total += tl.load(here, inside, 0.0).to(tl.float32)
    tl.store(here, total.to(out.dtype.element_ty), inside)


@triton.jit
def _pairs(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, norm: tl.tensor, eps: tl.tensor,
    row: tl.tensor, rows: tl.tensor, pairs: tl.tensor, inputs: tl.constexpr, half: tl.constexpr,
    BIASED: tl.constexpr, NORMED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Outputs `half` apart, side by side in one tile: twice [16, BLOCK_N / 2], float32 with
    the bits of the model's dtype. Pair p is the p % half-th of the p / half-th 2 * half outputs.
    """
    n = tl.arange(0, BLOCK_N)
    pair = tl.minimum(tl.program_id(0) * (BLOCK_N // 2) + n // 2, pairs - 1)
    n = pair // half * (2 * half) + pair % half + n % 2 * half
    line = weight + n.to(tl.int64)[:, None] * inputs
    total = _product(x, line, norm, eps, row, rows, inputs, NORMED, BLOCK_N, BLOCK_K, PDL)
    if BIASED:
        total += tl.load(bias + n).to(tl.float32)[None, :]
    rounded = total.to(x.dtype.element_ty).to(tl.float32)
    return tl.split(tl.reshape(rounded, [ROWS, BLOCK_N // 2, 2]))


@triton.jit(do_not_specialize=["rows"])
def gated(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, norm: tl.tensor, out: tl.tensor,
    eps: tl.tensor, rows: tl.tensor, inputs: tl.constexpr, half: tl.constexpr,
    BIASED: tl.constexpr, NORMED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """`x` [R, K], `weight` [2 F, K] -> silu(gate) * up, `out` [R, F], with F = `half`; a
    program per half a block of outputs and block of rows.
    """
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    gate, up = _pairs(
        x, weight, bias, norm, eps, row, rows, half, inputs, half,
        BIASED, NORMED, BLOCK_N, BLOCK_K, PDL,
    )  # fmt: skip
    dtype = out.dtype.element_ty
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    n = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)[None, :]
    inside = (row < rows)[:, None] & (n < half)
    tl.store(out + row[:, None] * half + n, (silu * up).to(dtype), inside)


@triton.jit
def _turned(
    x: tl.tensor, other: tl.tensor, cos: tl.tensor, sin: tl.tensor, inside: tl.tensor
) -> tl.tensor:
    """`x` at its position, as `kernels._turned` rounds; `other` is half a head away."""
    dtype = cos.dtype.element_ty
    x = (x * tl.load(cos, inside, 0.0).to(tl.float32)).to(dtype).to(tl.float32)
    return x + other * tl.load(sin, inside, 0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def qkv_rotated(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, norm: tl.tensor, cos: tl.tensor,
    sin: tl.tensor, target: tl.tensor, cache: tl.tensor, query: tl.tensor, eps: tl.tensor,
    rows: tl.tensor, q_heads: tl.tensor, kv: tl.tensor, inputs: tl.constexpr, half: tl.constexpr,
    BIASED: tl.constexpr, NORMED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """`x` [R, K], `weight` [(H + 2 KV) d, K] -> `query` [R, H, d], and `cache` [_, 2 KV, d] at
    `target` [R], with d = 2 * `half`; a program per half a block of outputs and block of rows.
    """
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    pairs = (q_heads + 2 * kv) * half
    low, high = _pairs(
        x, weight, bias, norm, eps, row, rows, pairs, inputs, half,
        BIASED, NORMED, BLOCK_N, BLOCK_K, PDL,
    )  # fmt: skip
    pair = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)[None, :]
    head, at = pair // half, pair % half
    inside = (row < rows)[:, None] & (pair < pairs)
    table = row[:, None] * (2 * half) + at
    turned = _turned(low, high, cos + table, sin + table, inside)
    turned_high = _turned(high, low, cos + table + half, sin + table + half, inside)
    value = head >= q_heads + kv
    low = tl.where(value, low, turned).to(query.dtype.element_ty)
    high = tl.where(value, high, turned_high).to(query.dtype.element_ty)
    here = query + (row[:, None] * q_heads + head) * (2 * half) + at
    of_query = inside & (head < q_heads)
    tl.store(here, low, of_query)
    tl.store(here + half, high, of_query)
    line = tl.load(target + row, row < rows, 0)[:, None] * 2 * kv + head - q_heads
    here = cache + line * (2 * half) + at
    of_cache = inside & (head >= q_heads)
    tl.store(here, low, of_cache)
    tl.store(here + half, high, of_cache)


@triton.jit
def rms_norm(
    x: tl.tensor, norm: tl.tensor, out: tl.tensor, eps: tl.tensor, d: tl.constexpr,
    BLOCK_D: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """`x` [R, D] -> `out` [R, D]; a program per row."""
    at = tl.arange(0, BLOCK_D)
    here = tl.program_id(0).to(tl.int64) * d + at
    weight = tl.load(norm + at, at < d, 0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    wide = tl.load(x + here, at < d, 0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / d + eps)
    tl.store(out + here, (wide * scale * weight).to(out.dtype.element_ty), at < d)
