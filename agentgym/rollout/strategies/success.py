"""Success replay: a stored success replaces one episode of a group in which all failed.

Source: ARPO for GUI agents ("ARPO: End-to-End Policy Optimization for GUI Agents with Experience Replay"): the last
successes of each task are stored. A group without a success gets a stored one, so that it has a gradient. Its tokens
keep their sampling log-probabilities, and the loss corrects for the changed policy.
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
    """Number of successes stored per task, the latest ones."""
    probed: bool = False
    """Begin with the successes of ``strategy.probe``: DART's pool of trajectories that is collected before training."""


@replay(
    "success",
    paper="ARPO: End-to-End Policy Optimization for GUI Agents with Experience Replay",
    status="reproduced",
    test="tests/trainers/test_branch_training.py::test_a_stored_success_takes_the_place_of_a_failure_where_all_failed",
)
def success(
    successes: Sequence[bool | None], num_stored: int, rng: np.random.Generator, options: SuccessOptions
) -> tuple[int, int] | None:
    """Return (member to replace, stored success), or None if a member succeeded or nothing is stored.

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
