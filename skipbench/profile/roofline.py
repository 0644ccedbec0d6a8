"""Rates of a device, memory bandwidth and arithmetic, from its datasheet or measured."""

from collections.abc import Callable, Mapping

import torch

from skipbench.config.hardware import Hardware
from skipbench.lm.model import LM
from skipbench.metrics.costs import Roofline
from skipbench.profile.clock import timed

MAX_BYTES = 256 << 20  # of the matrix that is read to measure bandwidth
PRODUCT = 1024  # rows and columns of the matrices whose product measures arithmetic
TRIES = 10
NORMS = 32  # in one try

Known = Mapping[str, Hardware]
"""Devices by the name of their file in `conf/hardware`."""


def match(device_name: str, known: Known) -> str | None:
    """The entry of a device by the full name that its driver gives; None where there is none."""
    return next((name for name, facts in known.items() if device_name in facts.devices), None)


def device_name(device: torch.device) -> str:
    """The driver's name of a GPU; `cpu` for the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def roofline(device: torch.device, dtype: torch.dtype, size_bytes: int, known: Known) -> Roofline:
    """Rates of `device`: its datasheet's where `known` has them, else measured.

    Args:
        size_bytes: bytes that one decoding step reads; bandwidth is measured at that size.
    """
    called = device_name(device)
    name = match(called, known)
    facts = known[name] if name is not None else Hardware([])
    flops = facts.flops.get(str(dtype).removeprefix("torch."))
    return Roofline(
        name or called,
        bandwidth(device, size_bytes, known),
        flops or product_flops(device, dtype),
        "datasheet" if facts.bandwidth and flops else "measured",
    )


def bandwidth(device: torch.device, size_bytes: int, known: Known) -> float:
    """Bytes/s of a device's memory: its datasheet's where `known` has it, else measured at
    `size_bytes`.
    """
    name = match(device_name(device), known)
    rate = None if name is None else known[name].bandwidth
    return rate or read_bandwidth(device, size_bytes)


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of ten calls: a disturbance can only slow a call down."""
    return min(timed(call, device) for _ in range(TRIES))


@torch.inference_mode()
def read_bandwidth(device: torch.device, size_bytes: int) -> float:
    """Bytes/s at which a matrix of `size_bytes` (at most 256 MiB) is read by a matrix-vector
    product, the best of ten.

    The size is the model's own, so that a model that fits into a cache is compared with the cache's
    bandwidth.
    """
    columns = 4096
    rows = max(1, min(size_bytes, MAX_BYTES) // (4 * columns))
    matrix, vector = torch.ones(rows, columns, device=device), torch.ones(columns, device=device)
    return 4 * rows * columns / _fastest(lambda: torch.mv(matrix, vector), device)


@torch.inference_mode()
def product_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations/s of a product of two square matrices, the best of ten."""
    matrix = torch.ones(PRODUCT, PRODUCT, device=device, dtype=dtype)
    return 2 * PRODUCT**3 / _fastest(lambda: torch.mm(matrix, matrix), device)


@torch.inference_mode()
def norm_s(hidden: int, dtype: torch.dtype) -> float:
    """Seconds of an RMS norm of one row on a CPU, nearly all of which are its calls; the best of
    ten.
    """
    row, weight = torch.ones(1, 1, hidden, dtype=dtype), torch.ones(hidden, dtype=dtype)

    def call() -> None:
        for _ in range(NORMS):
            torch.nn.functional.rms_norm(row, (hidden,), weight, 1e-5)

    return _fastest(call, row.device) / NORMS


def roofline_s_per_token(lm: LM, context_tokens: int, bandwidth: float) -> float:
    """Seconds that reading all weights and the K/V rows of `context_tokens` takes at `bandwidth`
    bytes/s.
    """
    return (lm.weight_bytes() + context_tokens * row_bytes(lm)) / bandwidth


def row_bytes(lm: LM) -> int:
    """Bytes of keys and values of one token in all layers."""
    return sum(r[0].numel() * r.element_size() for r in lm.cache.rows)
