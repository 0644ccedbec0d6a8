"""Schema of the devices in `conf/hardware`: what a roofline is made of."""

from dataclasses import dataclass, field

from omegaconf import MISSING


@dataclass
class Hardware:
    """Rates from the maker's datasheet; those that are missing are measured."""

    devices: list[str] = MISSING
    """Names under which the driver knows it, in full: a part of a GPU (MIG) has another name, and other rates."""
    memory_bytes: float | None = None
    bandwidth: float | None = None
    """Bytes/s of its memory."""
    flops: dict[str, float] = field(default_factory=dict)
    """Floating-point operations/s of dense matrix products, by dtype."""
