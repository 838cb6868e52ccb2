"""Fakes of CUDA's devices, streams and graphs, which record the calls of each thread and need no GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


class FakeStream:
    """A stream that records what it waits for."""

    def __init__(self, device: object = None) -> None:
        self.log: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.log.append(("waits for", other))

    def synchronize(self) -> None:
        self.log.append("synchronized")


class FakeCuda:
    """Fake GPUs that record the current device and stream of each thread; as in CUDA, 0 in a new thread."""

    def __init__(self, num_gpus: int) -> None:
        self.num_gpus = num_gpus
        self.default = FakeStream()
        self._current = threading.local()

    def current_device(self) -> int:
        return getattr(self._current, "device", 0)

    def set_device(self, device: int) -> None:
        assert device < self.num_gpus, f"invalid device ordinal {device}"
        self._current.device = device

    def install(self, patch: pytest.MonkeyPatch) -> FakeCuda:
        """Replace torch's functions until the test ends."""
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: self.num_gpus)
        patch.setattr(torch.cuda, "current_device", self.current_device)
        patch.setattr(torch.cuda, "set_device", self.set_device)
        patch.setattr(torch.cuda, "Stream", FakeStream)
        patch.setattr(torch.cuda, "current_stream", self.current_stream)
        patch.setattr(torch.cuda, "stream", self.stream)
        return self

    def current_stream(self) -> FakeStream:
        return getattr(self._current, "stream", self.default)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._current.stream = before


class FakeGraphs:
    """Fake CUDA graphs that run the recorded function and count the replays."""

    def __init__(self) -> None:
        self.recorded: list[dict[str, object]] = []
        self.streams: list[FakeStream] = []
        self.num_replays = 0

    def install(self, patch: pytest.MonkeyPatch) -> FakeGraphs:
        """Replace torch's graphs until the test ends."""
        FakeCuda(1).install(patch)
        patch.setattr(torch.cuda, "Stream", self._stream)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
        patch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        patch.setattr(torch.cuda, "graph", self._graph)
        return self

    def replay(self) -> None:
        self.num_replays += 1

    def _stream(self) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    @contextmanager
    def _graph(self, graph: object, **how: object) -> Iterator[None]:
        assert graph is self
        self.recorded.append(how)
        yield
