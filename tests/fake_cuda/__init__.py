"""CUDA code paths on a machine without CUDA, in two tiers: `on_fake` and `on_cpu`.

What neither shows is listed in docs/gpu.md: numerics of kernels, timing.
"""

from fake_cuda.journal import SOURCE, Journal, PhaseClock, place_of, planted
from fake_cuda.on_cpu import cpu_behind_cuda, moved
from fake_cuda.on_fake import fake_cuda
from fake_cuda.tape import CheckedCapture

__all__ = [
    "SOURCE", "CheckedCapture", "Journal", "PhaseClock", "cpu_behind_cuda", "fake_cuda", "moved",
    "place_of", "planted",
]  # fmt: skip
