"""A stored success takes the place of one episode where a whole group failed.

Source: ARPO for GUI agents ("ARPO: End-to-End Policy Optimization for GUI Agents with Experience Replay"): of each task
the last successes are kept; a group without one gets a stored one, so that it teaches something. Its tokens keep the
log-probabilities with which they were sampled, and the loss corrects for what has changed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import replay
from agentgym.settings import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessOptions(Options):
    """Settings of success replay."""

    kind: str = "success"
    keep: Count = 8
    """Successes that are kept of a task, the latest."""


@replay(
    "success",
    paper="ARPO: End-to-End Policy Optimization for GUI Agents with Experience Replay",
    status="reproduced",
    test="tests/trainers/test_replay.py",
)
def success(
    successes: Sequence[bool | None], num_stored: int, rng: np.random.Generator, options: SuccessOptions
) -> tuple[int, int] | None:
    """Return which member is replaced by which stored success; None where a member succeeded, or nothing is stored.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> success([False, True], 3, draw, SuccessOptions()) is None
        True
        >>> success([None, False], 1, draw, SuccessOptions())
        (1, 0)
    """
    failed = [at for at, succeeded in enumerate(successes) if succeeded is False]
    if any(successes) or not failed or not num_stored:
        return None
    return int(rng.choice(failed)), int(rng.integers(num_stored))
