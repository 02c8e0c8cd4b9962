"""Numbers of the host on the device, without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, if it is the host's from pinned memory: a copy from any other waits for
    everything that was asked of the device before."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
