"""All episodes of a group begin at the start of their task, at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.strategies.component import branching


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnceOptions(Options):
    """No settings."""

    kind: str = "at_once"


@branching("at_once", paper="independent episodes", status="reproduced", options=AtOnceOptions)
def at_once(num_left: int) -> Sequence[Start]:
    """Return the starts of all episodes.

    Example:
        >>> at_once(2) == [START, START]
        True
    """
    return [START] * num_left
