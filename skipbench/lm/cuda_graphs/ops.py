"""Operators of torch that launch one Triton kernel each, for weights that `products` does not take.

On a CPU they are what `on_cpu` states in plain torch; Triton is imported where one runs on a GPU.
"""

import importlib.util
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor
from torch.library import custom_op

TOLERANCE = 0.02  # of the norm; a wrong mask or position is off by 1


def differs(found: Tensor, wanted: Tensor) -> bool:
    """True where a result is not near the other."""
    return not float((found - wanted).norm()) <= TOLERANCE * float(wanted.norm())


def first_line(error: Exception) -> str:
    """What a compiler or driver said, in a line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


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


@custom_op("skipbench::silu_times", mutates_args=(), device_types="cuda")
def silu_times(gate_up: Tensor) -> Tensor:
    """`llama.silu_times`."""
    from skipbench.lm.cuda_graphs import kernels

    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    with device_of(gate_up):
        kernels.silu_times[rows, -(-width // 1024)](gate_up, out, width, BLOCK=1024)
    return out


@custom_op("skipbench::rotate_and_write", mutates_args=("cache",), device_types="cuda")
def rotate_and_write(
    qkv: Tensor, cos: Tensor, sin: Tensor, target: Tensor, cache: Tensor, q_norm: Tensor | None,
    k_norm: Tensor | None, q_eps: float, k_eps: float,
) -> Tensor:  # fmt: skip
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
