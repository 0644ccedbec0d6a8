"""`DeferredScalar`: a number that a device still computes."""

import torch
from torch import Tensor


class DeferredScalar:
    """One number on its way to the host, who may queue more work before reading it."""

    def __init__(self, value: Tensor) -> None:
        """`value`: a tensor of one element, on any device."""
        self._host = value
        self._arrived: torch.cuda.Event | None = None
        if value.device.type == "cuda":
            self._host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._host.copy_(value, non_blocking=True)
            arrived: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it so
            arrived.record(torch.cuda.current_stream(value.device))
            self._arrived = arrived

    def read(self) -> float:
        """The number; waits for the work that was queued before it, and for none behind."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return float(self._host)
