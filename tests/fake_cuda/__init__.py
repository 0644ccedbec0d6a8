"""CUDA code paths on a machine without CUDA: tensors that say `cuda:N` and compute on a CPU.

What they do not show is listed in docs/gpu.md: numerics of kernels, timing.
"""

from fake_cuda.journal import Journal, PhaseClock
from fake_cuda.on_cpu import cpu_behind_cuda, lm_on, moved, one_device, two_devices

__all__ = [
    "Journal", "PhaseClock", "cpu_behind_cuda", "lm_on", "moved", "one_device", "two_devices",
]  # fmt: skip
