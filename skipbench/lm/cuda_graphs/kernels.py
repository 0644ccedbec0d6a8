"""Triton kernels of `ops`, imported where one is launched.

Letters of shapes as in `lm.llama`; T: a tile of heads. Numbers are float32 inside, and rounded
where torch's operators round.
"""

import contextlib
import os

import triton
import triton.language as tl

from skipbench.config.paths import cache_folder, private_folder

with contextlib.suppress(OSError):  # Triton loads what it finds there; its own may be open to all
    os.environ.setdefault("TRITON_CACHE_DIR", str(private_folder(cache_folder() / "triton")))

LOWEST: tl.constexpr = tl.constexpr(-3e38)  # below every score, and finite


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
