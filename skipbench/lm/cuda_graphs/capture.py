"""Recording of work over static buffers, replayed at the price of one launch. The work may be
executed while it is captured; lengths and positions come from buffers too, or they would be frozen.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

Work = Callable[[], None]
Replay = Callable[[], None]


def out_of_memory(error: RuntimeError) -> bool:
    """True if the device had no memory left. What the driver lacks while it makes a graph comes as
    a plain `torch.AcceleratorError`, libraries as `..._ALLOC_FAILED`.
    """
    words = ("out of memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


class EagerCapture:
    """Calls the same function again, on any device and no faster: a graph's result without one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def capture(self, work: Work) -> Replay:
        """Does `work` as often as the result is called."""
        work()
        return work

    def free_bytes(self) -> int:
        """Memory of the device that is free when its work is done; 0 where captures take none."""
        return 0


class CudaGraphCapture(EagerCapture):
    """CUDA graphs of one device, all in one memory pool.

    The pool may be shared by graphs that are replayed in any order, because nothing lives in it
    from one replay to the next: inputs and outputs are buffers outside of it.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        cuda: Any = torch.cuda  # streams and events are untyped
        self.pool, self.stream = cuda.graph_pool_handle(), cuda.Stream(device)

    def capture(self, work: Work) -> Replay:
        """As torch's own `graph`, which waits for the device and empties the allocator each time:
        here `free_bytes` does, around all captures of a key.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device):
            now = torch.cuda.current_stream()
            self.stream.wait_stream(now)
            try:
                with torch.cuda.stream(self.stream):
                    # libraries allocate and choose their kernels at the first call, which no
                    # capture may contain
                    work()
                    graph.capture_begin(pool=self.pool)
                    try:
                        work()
                    except BaseException:
                        with suppress(RuntimeError):  # the first error says more
                            graph.capture_end()
                        raise
                    graph.capture_end()
            finally:
                now.wait_stream(self.stream)
        return graph.replay

    def free_bytes(self) -> int:
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return torch.cuda.mem_get_info()[0]
