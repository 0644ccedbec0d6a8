"""Operators of torch that launch one Triton kernel each (`attend`: two): what a captured graph
launches beside the products of weights and the norms.

FakeTensors and operator counts know them without Triton, which is imported where one runs.
"""

import importlib.util
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor
from torch.library import custom_op

MAX_ROWS = 32  # of `attend`: keys of all rows of a pass are one tile
Norms = tuple[Tensor, float, Tensor, float]  # weight and epsilon of the norms of queries and keys


def at_hand(device: torch.device) -> bool:
    """True if Triton is installed for a device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device."""
    guard: Any = torch.cuda.device_of
    return cast("AbstractContextManager[None]", guard(tensor))


def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 8  # for the interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _power_of_2(least: int, at_least: int = 1) -> int:
    return max(at_least, 1 << (least - 1).bit_length())


@custom_op("skipbench::silu_times", mutates_args=())
def silu_times(gate_up: Tensor) -> Tensor:
    """`llama.silu_times`."""
    from skipbench.lm.cuda_graphs import kernels

    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    with device_of(gate_up):
        kernels.silu_times[rows, -(-width // 1024)](gate_up, out, width, BLOCK=1024)
    return out


silu_times.register_fake(lambda x: x.new_empty(x.shape[0], x.shape[1] // 2))


@custom_op("skipbench::rotate_and_write", mutates_args=("cache",))
def rotate_and_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    target: Tensor,
    cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    q_eps: float,
    k_eps: float,
) -> Tensor:
    """Queries [R, H, d] of `qkv` [R, H + 2 KV, d] at their positions; keys and values go to the
    rows `target` of `cache` [_, 2 KV, d].
    """
    from skipbench.lm.cuda_graphs import kernels

    rows, all_heads, d = qkv.shape
    kv = cache.shape[1] // 2
    query = qkv.new_empty(rows, all_heads - 2 * kv, d)
    norms = (q_norm, k_norm) if q_norm is not None else (qkv, qkv)  # these are not read
    with device_of(qkv):
        kernels.rotate_and_write[rows, all_heads](
            qkv, cos, sin, target, cache, query, *norms,
            q_eps, k_eps, all_heads - 2 * kv, kv, d,
            NORMED=q_norm is not None, BLOCK_D=_power_of_2(d), num_warps=1,
        )  # fmt: skip
    return query


rotate_and_write.register_fake(
    lambda qkv, cos, sin, target, cache, *_: qkv.new_empty(
        qkv.shape[0], qkv.shape[1] - cache.shape[1], qkv.shape[2]
    )
)


@custom_op("skipbench::prepare", mutates_args=("target", "used", "cos", "sin", "masks"))
def prepare(
    bounds: Tensor,
    depth: Tensor,
    tree_mask: Tensor,
    windows: Tensor,
    all_cos: Tensor,
    all_sin: Tensor,
    target: Tensor,
    used: Tensor,
    cos: Tensor,
    sin: Tensor,
    masks: Tensor,
) -> None:
    """`GraphBuffers.input_preparation`: fills `target` to `sin`, and `masks` [W, G * R, B]."""
    from skipbench.lm.cuda_graphs import kernels

    (kinds, lines, size), rows = masks.shape, len(depth)
    positions, _, d = all_cos.shape
    with device_of(masks):
        kernels.prepare[-(-size // 256), rows, kinds](
            bounds, depth, tree_mask, windows, all_cos, all_sin, target, used, cos, sin, masks,
            rows, lines // rows, size, positions, d, torch.finfo(masks.dtype).min / 2,
            BLOCK=256, BLOCK_D=_power_of_2(d),
        )  # fmt: skip


prepare.register_fake(lambda *_: None)


def attend_grid(
    lines: int, kv: int, d: int, size: int, wide: bool, splits: int, multiprocessors: int
) -> tuple[int, int, int, int]:
    """Query and cache rows of a tile of `attend`, tiles of a key head's `lines` query rows, and
    parts of the cache: with `splits` 0 so many that the programs fill the device.
    """
    # larger tiles would not stay in registers
    block_m = min(16 if wide else 64, _power_of_2(lines, 16))
    block_n = 32 if wide or d > 128 else 64
    tiles = -(-lines // block_m)
    splits = splits or multiprocessors // (kv * tiles)
    return block_m, block_n, tiles, max(1, min(splits, -(-size // block_n)))


@custom_op("skipbench::attend", mutates_args=("cache",))
def attend(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    target: Tensor,
    bounds: Tensor,
    mask: Tensor,
    cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    q_eps: float,
    k_eps: float,
    scale: float,
    splits: int,
) -> Tensor:
    """`rotate_and_write`, then attention of the rows over `cache` before `bounds[0]`, without the
    `bounds[3]` rows behind the first `SINKS`, and over each other: [R, H * d].

    Args:
        mask: additive, [>= R, B]; the first R rows are read.
        splits: parts of the cache side by side; 0 for as many as fill the device.
    """
    from skipbench.lm.cuda_graphs import kernels

    rows, all_heads, d = qkv.shape
    kv, size = cache.shape[1] // 2, mask.shape[1]
    heads = all_heads - 2 * kv
    group = heads // kv
    wide, block_d = qkv.dtype.itemsize == 4, _power_of_2(d, 16)
    block_m, block_n, tiles, splits = attend_grid(
        group * rows, kv, d, size, wide, splits, multiprocessors(qkv.device)
    )
    parts = qkv.new_empty(splits, rows, heads, d, dtype=torch.float32)
    log_sums = parts.new_empty(splits, rows, heads)
    norms = (q_norm, k_norm) if q_norm is not None else (qkv, qkv)  # these are not read
    out = qkv.new_empty(rows, heads * d)
    with device_of(qkv):
        kernels.attend_parts[splits, kv, tiles](
            qkv, cos, sin, target, bounds, mask, cache, parts, log_sums, *norms,
            q_eps, k_eps, scale, rows, d, size,
            GROUP=group, NORMED=q_norm is not None, BLOCK_M=block_m, BLOCK_N=block_n,
            BLOCK_R=_power_of_2(rows, 16), BLOCK_D=block_d, num_stages=2,
            num_warps=8 if wide or block_m > 16 else 4,
        )  # fmt: skip
        kernels.join_parts[(rows * heads,)](
            parts, log_sums, out, splits, d, BLOCK_S=_power_of_2(splits), BLOCK_D=block_d
        )
    return out


attend.register_fake(
    lambda qkv, cos, sin, target, bounds, mask, cache, *_: qkv.new_empty(
        qkv.shape[0], (qkv.shape[1] - cache.shape[1]) * qkv.shape[2]
    )
)
