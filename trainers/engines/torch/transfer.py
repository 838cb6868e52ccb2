"""Transfer of a step's few numbers to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(
    numbers: Sequence[float] | Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return numbers as a tensor on a device, without waiting for what a GPU still computes.

    A copy from memory that the GPU cannot read by itself would wait for all kernels launched before it.
    """
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=dtype, device=device)
    return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
