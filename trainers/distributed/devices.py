"""The GPU of a process, in all of its threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def on_this_device(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return ``work`` as a function that uses this thread's GPU, whichever thread calls it.

    CUDA's current device belongs to a thread and is GPU 0 in a new one. There a collective of another rank's
    communicator, a new tensor or a stream would be on the wrong GPU.
    """
    if not torch.cuda.is_available():
        return work
    device = torch.cuda.current_device()

    @functools.wraps(work)
    def on_device(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        torch.cuda.set_device(device)
        return work(*args, **kwargs)

    return on_device


def beside(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return ``work`` as a function for a thread that trains while this one samples: on this GPU, on its own stream.

    All threads share CUDA's default stream, where the engine's next step would wait for a training step to end. The
    returned function waits for what this thread has launched so far, and returns when its own kernels are done.
    """
    if not torch.cuda.is_available():
        return work
    stream, before = _training_stream(torch.cuda.current_device()), torch.cuda.current_stream()

    @functools.wraps(work)
    def on_stream(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            result = work(*args, **kwargs)
        stream.synchronize()
        return result

    return on_this_device(on_stream)


@functools.lru_cache
def _training_stream(device: int) -> torch.cuda.Stream:
    """One for all steps: what the allocator frees in a stream is reused in that stream alone."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
