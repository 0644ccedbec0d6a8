"""Recording: from a function over static buffers to something that does the same work again at the
price of one launch.

What is captured reads and writes buffers that exist before and after it, takes no argument and
returns nothing: lengths and positions come from buffers too, or they would be frozen.
"""

import statistics
from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]
TRIALS = 5


class GraphCapture(Protocol):
    """One device's backend to record.

    The work may be executed while it is captured: buffers must stand the extra run.
    """

    device: torch.device

    def capture(self, work: Callable[[], None]) -> Replay:
        """Does `work` as often as the result is called."""
        ...

    def seconds(self, replay: Replay) -> float | None:
        """Median seconds of a replay; `None` where they mean nothing."""
        ...


class CudaGraphCapture:
    """CUDA graphs of one device, all in one memory pool.

    The pool may be shared by graphs that are replayed in any order, because nothing lives in it
    from one replay to the next: inputs and outputs are buffers outside of it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it so

    def capture(self, work: Callable[[], None]) -> Replay:
        with torch.cuda.device(self.device):
            now = torch.cuda.current_stream()
            self.stream.wait_stream(now)
            with torch.cuda.stream(self.stream):
                # libraries allocate and choose their kernels at the first call, which no capture
                # may contain
                work()
            now.wait_stream(self.stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                    work()
            finally:
                torch.cuda.set_stream(now)  # a capture that fails would leave its own stream behind
        return graph.replay

    def seconds(self, replay: Replay) -> float | None:
        times: list[float] = []
        with torch.cuda.device(self.device):
            for _ in range(TRIALS):
                first, last = _event(), _event()
                replay()
                first.record()
                for _ in range(8):
                    replay()
                last.record()
                last.synchronize()
                times.append(first.elapsed_time(last) / 8e3)
        return statistics.median(times)


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # as above
    return event


class EagerCapture:
    """Calls the same function on the same buffers again, on any device and no faster: the result of
    a graph without one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def capture(self, work: Callable[[], None]) -> Replay:
        work()
        return work

    def seconds(self, replay: Replay) -> float | None:
        return None
