"""Reward parts as authors give them: finite, and with a role that exists."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgym.errors import EnvError, unknown_name
from agentgym.types import RewardPart, RewardRole


def require_finite(parts: Sequence[RewardPart], where: str) -> None:
    """Refuse reward parts that are no numbers to learn from.

    Raises:
        EnvError: a part is NaN or infinite; the message begins with ``where``.
    """
    for part in parts:
        if not math.isfinite(part.value):
            raise EnvError(
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
