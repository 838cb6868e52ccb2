"""CUDA's current device without a GPU: it belongs to a thread and is 0 in a new one, as the driver has it."""

from __future__ import annotations

import threading

import pytest
import torch


class FakeCuda:
    """GPUs that only count: which one is current in which thread."""

    def __init__(self, num_gpus: int) -> None:
        self.num_gpus = num_gpus
        self._current = threading.local()

    def current_device(self) -> int:
        return getattr(self._current, "device", 0)

    def set_device(self, device: int) -> None:
        assert device < self.num_gpus, f"invalid device ordinal {device}"
        self._current.device = device

    def install(self, patch: pytest.MonkeyPatch) -> FakeCuda:
        """Put it in torch's place until the test is over."""
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: self.num_gpus)
        patch.setattr(torch.cuda, "current_device", self.current_device)
        patch.setattr(torch.cuda, "set_device", self.set_device)
        return self
