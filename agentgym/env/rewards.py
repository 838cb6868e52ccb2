"""Reward parts as authors give them: finite, of a size that can be learnt from, and with a role that exists."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgym.errors import EnvError, RewardError, unknown_name
from agentgym.types import RewardPart, RewardRole

LARGEST = 1e12
"""Largest size of a reward part: sums of squares of larger ones overflow where they are learnt from."""


def require_finite(parts: Sequence[RewardPart], where: str) -> None:
    """Refuse reward parts that are no numbers to learn from.

    Raises:
        RewardError: a part is NaN, infinite or beyond :data:`LARGEST`; the message begins with ``where``.
    """
    for part in parts:
        if abs(part.value) > LARGEST and math.isfinite(part.value):
            raise RewardError(
                f"{where}: the reward part {part.name!r} is {part.value:g}, expected at most {LARGEST:g} in size; "
                "scale it, for instance to 1 for success"
            )
        if not math.isfinite(part.value):
            raise RewardError(
                f"{where}: the reward part {part.name!r} is {part.value}, expected a finite number; a division by 0 "
                "or a missing score is the environment's to handle"
            )


def role_of(role: RewardRole | str) -> RewardRole:
    """Return the role of a name.

    Raises:
        EnvError: there is no such role; the message names the nearest.
    """
    try:
        return RewardRole(role)
    except ValueError:
        raise EnvError(str(unknown_name("reward role", str(role), [known.value for known in RewardRole]))) from None
