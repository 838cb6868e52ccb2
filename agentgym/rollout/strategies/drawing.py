"""Draws of tasks in proportion to weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def drawn(
    tasks: Sequence[int], log_weights: Sequence[float] | NDArray[np.float64], num: int, rng: np.random.Generator
) -> list[int]:
    """Return ``num`` tasks, drawn without replacement with probabilities in proportion to ``exp(log_weights)``.

    Adding a Gumbel number to each logarithm and taking the largest is such a draw, and needs no probabilities, which
    could underflow. Of fewer than ``num`` tasks all are taken, several times over.

    Example:
        >>> drawn([7, 8, 9], [0.0, -1e9, 50.0], 2, np.random.default_rng(0))
        [9, 7]
        >>> drawn([7], [0.0], 2, np.random.default_rng(0))
        [7, 7]
    """
    keys = np.asarray(log_weights, dtype=np.float64) + rng.gumbel(size=len(tasks))
    best = np.argsort(-keys, kind="stable")
    return [tasks[int(best[at % len(tasks)])] for at in range(num)]
