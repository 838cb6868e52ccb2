"""Use of a process's GPU from all of its threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def gpu_bytes() -> int:
    """Return the total memory of this process's GPU in bytes; 0 without a GPU."""
    return torch.cuda.get_device_properties().total_memory if torch.cuda.is_available() else 0


def free_unused() -> None:
    """Give the memory that this process no longer uses back to its GPU, for servers on it that are about to wake.

    torch keeps freed blocks for later tensors. After a training step that is the memory of its activations.
    """
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def on_this_device(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap ``work`` so that it uses the GPU of the current thread, whichever thread calls it.

    CUDA's current device is per thread, and GPU 0 in a new thread. Without the wrapper, new tensors, streams and
    collectives of other ranks would use the wrong GPU.
    """
    if not torch.cuda.is_available():
        return work
    device = torch.cuda.current_device()

    @functools.wraps(work)
    def on_device(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        torch.cuda.set_device(device)
        return work(*args, **kwargs)

    return on_device


def on_background_thread(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap ``work`` for a thread that trains while this one samples: on the same GPU, on a separate CUDA stream.

    All threads share CUDA's default stream. On it the engine's next step would wait until a training step ends. The
    wrapper waits for the kernels that this thread has launched so far, and returns when its own kernels are done.
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
    """Return the training stream, one for all steps: the allocator reuses memory only within a stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
