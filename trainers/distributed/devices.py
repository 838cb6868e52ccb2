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
