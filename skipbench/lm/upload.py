"""Numbers from the host to a device without a wait."""

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """`values` on the device. From the host to a GPU the copy is only on its way when this returns,
    out of pinned memory: from pageable memory the host would wait for all that the device still has
    to do.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values if values.device == device else values.to(device)


def upload_into(target: Tensor, values: Tensor) -> None:
    """`upload` into a tensor that is there."""
    if target.device.type == "cuda":
        values = values.pin_memory()
    target.copy_(values, non_blocking=True)
