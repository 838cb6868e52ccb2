"""Checks of reward parts: finite, not too large to learn from, and with a known role."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgym.errors import EnvError, RewardError, unknown_name
from agentgym.types import RewardPart, RewardRole

LARGEST = 1e12
"""Largest absolute value of a reward part. Sums of squares of larger values overflow during training."""


def require_finite(parts: Sequence[RewardPart], where: str) -> None:
    """Raise an error for reward parts that cannot be learned from.

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
                f"{where}: the reward part {part.name!r} is {part.value}, expected a finite number; let the "
                "environment handle a division by 0 or a missing score"
            )


def role_of(role: RewardRole | str) -> RewardRole:
    """Return the role with a name.

    Raises:
        EnvError: there is no such role; the message names the nearest one.
    """
    try:
        return RewardRole(role)
    except ValueError:
        raise EnvError(str(unknown_name("reward role", str(role), [known.value for known in RewardRole]))) from None
