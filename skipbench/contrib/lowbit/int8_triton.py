"""The Triton kernel of `int8_gpu`, imported where it is launched. Numbers are float32 inside."""

import triton
import triton.language as tl

from skipbench.lm.cuda_graphs import kernels  # noqa: F401  sets where Triton keeps its files


@triton.jit(do_not_specialize=["rows"])
def int8_linear(
    x: tl.tensor, weight: tl.tensor, weight_scale: tl.tensor, bias: tl.tensor, residual: tl.tensor,
    out: tl.tensor, rows: tl.tensor, inputs: tl.tensor, outputs: tl.tensor, BIASED: tl.constexpr,
    ADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
) -> None:  # fmt: skip
    """`x` [R, in] by `weight` [out, in] of 8 bits -> `out` [R, out]; a program per block of outputs
    and of rows, which are as many in every pass: no bit of a row depends on the others.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    line = weight + (n.to(tl.int64) * inputs)[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, inputs, BLOCK_K):
        at = (k + tl.arange(0, BLOCK_K))[None, :]
        part = tl.load(x + m * inputs + at, (m < rows) & (at < inputs), 0.0)
        held = tl.load(line + at, (n < outputs)[:, None] & (at < inputs), 0)
        held = held.to(tl.float32).to(part.dtype)  # 8 bits fit into those of bfloat16
        total += tl.dot(part, tl.trans(held), input_precision="ieee")
    total = total * tl.load(weight_scale + n, n < outputs, 0.0)[None, :]
    if BIASED:
        total += tl.load(bias + n, n < outputs, 0.0).to(tl.float32)[None, :]
    to, inside = m * outputs + n[None, :], (m < rows) & (n < outputs)[None, :]
    if ADDED:
        total += tl.load(residual + to, inside, 0.0).to(tl.float32)
    tl.store(out + to, total.to(out.dtype.element_ty), inside)
