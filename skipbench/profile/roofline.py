"""Rates of a device, memory bandwidth and arithmetic, from its datasheet or measured."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from skipbench.config.hardware import Hardware
from skipbench.lm.model import LM
from skipbench.metrics.prices import Roofline
from skipbench.profile.clock import timed

MAX_BYTES = 256 << 20  # of the matrix that is read to measure bandwidth
PRODUCT = 1024  # rows and columns of the matrices whose product measures arithmetic
TRIES = 10
GPU_BYTES = 4 << 30  # that are read or copied at once: many times a GPU's cache
QUEUED = 4  # reads between two events, so that no launch is waited for

Known = Mapping[str, Hardware]  # devices by the name of their file in `conf/hardware`


def match(device_name: str, known: Known) -> str | None:
    """The entry of a device by the full name that its driver gives; None where there is none."""
    return next((name for name, facts in known.items() if device_name in facts.devices), None)


def device_name(device: torch.device) -> str:
    """The driver's name of a GPU; `cpu` for the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def roofline(device: torch.device, dtype: torch.dtype, size_bytes: int, known: Known) -> Roofline:
    """Rates of `device`: its datasheet's where `known` has them, else measured, its bandwidth at
    the `size_bytes` that one decoding step reads.
    """
    name = match(device_name(device), known)
    facts = known[name] if name is not None else Hardware([])
    flops = facts.flops.get(str(dtype).removeprefix("torch."))
    source = "datasheet" if facts.bandwidth and flops else "measured"
    rate = facts.bandwidth or read_bandwidth(device, size_bytes)
    flops = flops or product_flops(device, dtype)
    return Roofline(name or device_name(device), rate, flops, source)


def _fastest(device: torch.device, call: Callable[..., object], *arguments: object) -> float:
    """Seconds of the fastest of ten calls: a disturbance can only slow a call down."""
    return min(timed(partial(call, *arguments), device) for _ in range(TRIES))


@torch.inference_mode()
def read_bandwidth(device: torch.device, size_bytes: int) -> float:
    """Bytes/s at which a matrix-vector product reads `size_bytes` (at most 256 MiB), the best of
    ten. At the model's size, a model that fits into a cache is compared with the cache's bandwidth.
    On a GPU it is `memory_rates(device).read`.
    """
    if device.type == "cuda":
        return memory_rates(device).read
    rows = max(1, min(size_bytes, MAX_BYTES) // (4 * 4096))
    matrix, vector = torch.ones(rows, 4096, device=device), torch.ones(4096, device=device)
    return matrix.nbytes / _fastest(device, torch.mv, matrix, vector)


class MemoryRates(NamedTuple):
    """Bytes/s of a GPU's memory: read alone, and read plus written by a copy."""

    read: float
    copy: float


@torch.inference_mode()
def memory_rates(device: torch.device) -> MemoryRates:
    """Measured between events of the device over 4 GiB, or a quarter of the memory that is free;
    the best of ten. The host's clock would add launch and wait, a fifth of a read of 256 MiB.
    """
    size_bytes = min(GPU_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.ones(max(1, size_bytes // (4 * 4096)), 4096, device=device)
    target, vector = torch.empty_like(source), torch.ones(4096, device=device)
    reads = (partial(torch.mv, source, vector), partial(torch.sum, source))
    read = source.nbytes / min(_event_s(device, call) for call in reads)
    copy = 2 * source.nbytes / _event_s(device, partial(target.copy_, source))
    del reads, source, target
    torch.cuda.empty_cache()
    return MemoryRates(read, copy)


def _event_s(device: torch.device, call: Callable[[], object]) -> float:
    """Seconds of a call in a queue of `QUEUED`, between events; the fastest of ten queues."""
    times, make = list[float](), partial[Any](torch.cuda.Event, enable_timing=True)
    with torch.cuda.device(device):
        for _ in range(TRIES + 1):  # the first warms up
            first, last = make(), make()
            call()  # the host queues the others meanwhile
            first.record()
            for _ in range(QUEUED):
                call()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / QUEUED / 1e3)
    return min(times[1:])


@torch.inference_mode()
def product_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations/s of a product of two square matrices, the best of ten."""
    matrix = torch.ones(PRODUCT, PRODUCT, device=device, dtype=dtype)
    return 2 * PRODUCT**3 / _fastest(device, torch.mm, matrix, matrix)


def row_bytes(lm: LM) -> int:
    """Bytes of keys and values of one token in all layers."""
    return sum(r[0].numel() * r.element_size() for r in lm.cache.rows)
