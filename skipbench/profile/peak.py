"""The most memory that a piece of work takes."""

import contextlib
import re
import resource
from collections.abc import Iterable
from pathlib import Path

import torch

PROCESS = Path("/proc/self")
RESET_PEAK = "5"  # proc(5): what clear_refs takes to begin VmHWM anew


class PeakMemory:
    """The peak of the GPUs' allocated memory, or without one that of this process, from now on;
    where Linux does not let it begin anew, since the start of the process.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self.gpus = sorted({d for d in devices if d.type == "cuda"}, key=str)
        for gpu in self.gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        if not self.gpus:
            with contextlib.suppress(OSError):
                (PROCESS / "clear_refs").write_text(RESET_PEAK)

    def peak_bytes(self) -> int:
        """Bytes over all GPUs, or of this process."""
        if self.gpus:
            return sum(map(torch.cuda.max_memory_allocated, self.gpus))
        with contextlib.suppress(OSError):
            if found := re.search(r"VmHWM:\s*(\d+) kB", (PROCESS / "status").read_text()):
                return int(found[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
