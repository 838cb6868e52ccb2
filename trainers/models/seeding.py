"""Random weights from a seed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.RLock()


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Seed torch's own generator inside a ``with``, and leave it as it was.

    Layers draw their first weights from the process's only generator. Runs in several threads take turns at it.

    Example:
        >>> def drawn():
        ...     with seeded_weights(0):
        ...         return torch.nn.Linear(2, 1).weight.tolist()
        >>> drawn() == drawn()
        True
    """
    with _lock, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
