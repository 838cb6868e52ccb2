"""Gradients that are clipped, and refused if they are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from agentgym.errors import RunStoppedError
from agentgym.trainers.distributed.sharding import whole


def clipped_norm(parameters: Iterable[torch.nn.Parameter], max_grad_norm: float, what: str, advice: str) -> float:
    """Clip gradients and return their norm before clipping; every optimizer step of a run begins with this call.

    Args:
        what: the norm's name, for the error.
        advice: what to change if the norm is not finite.

    Raises:
        RunStoppedError: the norm is not finite. The weights and the optimizer's state are those before the step.
    """
    norm: float = whole(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)).item()
    if not math.isfinite(norm):
        raise RunStoppedError(f"{what} is {norm}; {advice}")
    return norm
