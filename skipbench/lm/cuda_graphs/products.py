"""Operators of torch that launch one Triton kernel each: the products of weights, with the norm
before and the arithmetic behind them, for any number of rows.

A row has the same bits in every pass: tiles depend on a weight, a dtype and a device alone. Tensors
are contiguous, and rows start at a multiple of 16 bytes, as torch allocates.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op

from skipbench.lm.cuda_graphs.ops import device_of, multiprocessors

ROWS = 16  # of one block of the kernels
KIB = 1024


class Tile(NamedTuple):
    """Outputs of a program, inputs of a step, warps, and steps on the way at a time."""

    outputs: int
    inputs: int
    warps: int
    stages: int

    def shared_bytes(self, itemsize: int) -> int:
        """The most that a program takes, of what the compiler tells."""
        # the step that is multiplied is there too with 64 outputs, on Hopper, and in float32
        steps = self.stages if self.outputs >= 64 or itemsize == 4 else self.stages - 1
        weights_and_rows = steps * (self.outputs + ROWS) * self.inputs * itemsize
        return weights_and_rows + self.stages * self.inputs * itemsize  # the weight of the norm


# us of 9 rows in bfloat16 on an H100 80GB HBM3 (Triton 3.6, weights taken in turns larger than its
# L2, medians), by inputs -> outputs:
#                              4096 -> 4096    -> 6144    -> 28672    -> 128256   14336 -> 4096
#   64 x 256, 4 warps, 4 stages       14.8       20.7        84.4       350.4        47.0
#   32 x 256, 4 warps, 4 stages       15.3       22.1        90.6       354.7        48.2
#   32 x 512, 8 warps, 4 stages       16.1       26.7        89.9       357.6        46.4
#   cuBLAS                            17.3       22.5        86.2       374.8        48.5
MANY = Tile(64, 256, 4, 4)  # of more than SOME_OUTPUTS
SOME = Tile(32, 256, 4, 4)  # programs enough for a small model's weights
LONG = Tile(32, 512, 8, 4)  # of more than LONG_INPUTS, with few outputs
FLOAT32 = Tile(32, 64, 4, 4)  # not measured; larger ones spill registers
SOME_OUTPUTS, LONG_INPUTS = 4096, 8192


def tile_of(outputs: int, inputs: int, itemsize: int, shared_bytes: int) -> Tile:
    """Of a weight [outputs, inputs] on a device whose programs have `shared_bytes` at most."""
    if itemsize == 4:
        return FLOAT32
    best = MANY if outputs > SOME_OUTPUTS else LONG if inputs > LONG_INPUTS else SOME
    return best if best.shared_bytes(itemsize) <= shared_bytes else SOME


def shared_bytes(device: torch.device) -> int:
    """Bytes of shared memory that a program may take."""
    if device.type != "cuda":
        return 99 * KIB  # for the interpreter
    properties: Any = torch.cuda.get_device_properties(device)
    least = properties.shared_memory_per_block
    return int(getattr(properties, "shared_memory_per_block_optin", least))  # ROCm's have none


def can_depend(device: torch.device) -> bool:
    """True where a kernel may begin while another ends (programmatic dependent launch)."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def dependent(device: torch.device, tile: Tile, outputs: int, itemsize: int) -> bool:
    """True where a product of so many outputs should begin so: where no two of its programs share
    a multiprocessor. The waiting programs of others take the places of those that run.
    """
    if not can_depend(device):
        return False
    whole = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    alone = tile.shared_bytes(itemsize) > whole // 2
    return alone or -(-outputs // tile.outputs) <= multiprocessors(device)


def _check(x: Tensor) -> None:
    """Squares of a row are added in the same order in every pass."""
    assert x.is_contiguous()
    assert x.data_ptr() % 16 == 0, "Triton makes a kernel of its own for other addresses"


def _launch(x: Tensor, weight: Tensor, norm: Tensor | None) -> tuple[tuple[int, int], Any]:
    """Grid of a product, and what its kernels have in common."""
    _check(x)
    assert weight.is_contiguous() and x.dtype == weight.dtype
    assert norm is None or x.dtype != torch.float16, "x * norm may overflow: `rms_norm` first"
    outputs, inputs = weight.shape
    itemsize = x.dtype.itemsize
    tile = tile_of(outputs, inputs, itemsize, shared_bytes(x.device))
    pdl = dependent(x.device, tile, outputs, itemsize)
    options = {
        "inputs": inputs, "NORMED": norm is not None, "BLOCK_N": tile.outputs,
        "BLOCK_K": tile.inputs, "PDL": pdl, "num_warps": tile.warps, "num_stages": tile.stages,
    } | _launched_early(pdl)  # fmt: skip
    return (-(-outputs // tile.outputs), -(-x.shape[0] // ROWS)), options


def _launched_early(pdl: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if pdl else {}  # other backends of Triton have no such option


@custom_op("skipbench::linear", mutates_args=(), device_types="cuda")
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float
) -> Tensor:
    """`x` [R, K] -> x W^T + b [R, N], of a weight [N, K].

    Args:
        norm: [K], the weight of an RMS norm of `x` with `eps` before the product; not in float16.
    """
    from skipbench.lm.cuda_graphs import products_triton

    out = x.new_empty(x.shape[0], weight.shape[0])
    grid, options = _launch(x, weight, norm)
    with device_of(x):
        products_triton.linear[grid](
            x, weight, weight if bias is None else bias, x if norm is None else norm, out, eps,
            *out.shape, BIASED=bias is not None, ADDED=False, **options,
        )  # fmt: skip
    return out


@custom_op("skipbench::linear_add", mutates_args=("hidden",), device_types="cuda")
def linear_add(hidden: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Adds the product x W^T + b of `x` [R, K] and a weight [N, K] to `hidden` [R, N], with one
    rounding.
    """
    from skipbench.lm.cuda_graphs import products_triton

    assert hidden.is_contiguous()
    grid, options = _launch(x, weight, None)
    with device_of(x):
        products_triton.linear[grid](
            x, weight, weight if bias is None else bias, x, hidden, 0.0,
            *hidden.shape, BIASED=bias is not None, ADDED=True, **options,
        )  # fmt: skip


@custom_op("skipbench::gated", mutates_args=(), device_types="cuda")
def gated(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float
) -> Tensor:
    """`llama.silu_times` of `linear`: `x` [R, K] -> [R, F], of a weight [2 F, K]."""
    from skipbench.lm.cuda_graphs import products_triton

    rows, half = x.shape[0], weight.shape[0] // 2
    out = x.new_empty(rows, half)
    grid, options = _launch(x, weight, norm)
    with device_of(x):
        products_triton.gated[grid](
            x, weight, weight if bias is None else bias, x if norm is None else norm, out, eps,
            rows, half=half, BIASED=bias is not None, **options,
        )  # fmt: skip
    return out


@custom_op("skipbench::qkv_rotated", mutates_args=("cache",), device_types="cuda")
def qkv_rotated(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float, cos: Tensor,
    sin: Tensor, target: Tensor, cache: Tensor, kv: int,
) -> Tensor:  # fmt: skip
    """`ops.rotate_and_write` of `linear`: queries [R, H, d] of `x` [R, K] and a weight
    [(H + 2 KV) d, K] at their positions; keys and values go to the rows `target` [R] of `cache`
    [_, 2 KV, d].

    Args:
        cos: and `sin` [R, 1, d], as `RotaryCache.rope`.
    """
    from skipbench.lm.cuda_graphs import products_triton

    assert cache.is_contiguous() and cos.is_contiguous() and sin.is_contiguous()
    rows, d = x.shape[0], cache.shape[2]
    query = x.new_empty(rows, weight.shape[0] // d - 2 * kv, d)
    grid, options = _launch(x, weight, norm)
    with device_of(x):
        products_triton.qkv_rotated[grid](
            x, weight, weight if bias is None else bias, x if norm is None else norm, cos, sin,
            target, cache, query, eps, rows, query.shape[1], kv, half=d // 2,
            BIASED=bias is not None, **options,
        )  # fmt: skip
    return query


@custom_op("skipbench::rms_norm", mutates_args=(), device_types="cuda")
def rms_norm(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    """RMS norm of `x` [R, D] by a weight [D]."""
    from skipbench.lm.cuda_graphs import products_triton

    _check(x)
    out, (rows, d), pdl = torch.empty_like(x), x.shape, can_depend(x.device)
    with device_of(x):
        products_triton.rms_norm[(rows,)](
            x, norm, out, eps, d, BLOCK_D=1 << (d - 1).bit_length(), PDL=pdl, num_warps=8,
            **_launched_early(pdl),
        )  # fmt: skip
    return out
