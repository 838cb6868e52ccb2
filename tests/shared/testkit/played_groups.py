"""Programs of groups for tests that call a player themselves."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.rollout.branch import Start
from agentgym.rollout.program import Planned
from agentgym.rollout.waves import AtOnce, ChooseStarts, InWaves


def in_waves(choose: ChooseStarts | None) -> Planned:
    """Return the program that plays waves of the starts that a branching chooses."""
    assert choose is not None
    return Planned(play=InWaves(choose))


def hinted(num_hints: int, texts: Sequence[str]) -> Planned:
    """Return the program that shows hints to the last episodes of a group."""
    return Planned(play=AtOnce([Start(num_hints=num_hints, hint=text) for text in texts]))
