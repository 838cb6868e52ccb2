"""Pairs of episodes that differ from a random turn on.

Source: "Regressing the Relative Future: Efficient Policy Optimization for Multi-turn RLHF" (REFUEL), whose loss
(``loss.kind=refuel``) compares two completions of the same state, each played to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.strategies.component import branching
from agentgym.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsOptions(Options):
    """No settings."""

    kind: str = "pairs"


@branching(
    "pairs",
    paper="Regressing the Relative Future: Efficient Policy Optimization for Multi-turn RLHF",
    status="experimental",
    limits="the turn is drawn from the second one on; the loss compares the first turns of all episodes, too",
    test="tests/rollout/test_trees.py::test_each_episode_gets_a_sibling_at_a_random_turn",
)
def pairs(
    played: Sequence[Trajectory], num_left: int, group_size: int, rng: np.random.Generator, options: PairsOptions
) -> list[Start]:
    """Return starts for half of the group, then one branch of each of these episodes at a random turn.

    Example:
        >>> pairs((), 5, 5, np.random.default_rng(0), PairsOptions()) == [START] * 3
        True
    """
    if not played:
        return [START] * min(num_left, -(-group_size // 2))
    paired = {one.parent for one in played}
    alone = [
        at
        for at, one in enumerate(played)
        if one.status.is_evidence and one.parent < 0 and at not in paired and len(one.turns) > 1
    ]
    starts = [Start(parent=at, turn=int(rng.integers(1, len(played[at].turns)))) for at in alone]
    return starts[:num_left] or [START] * num_left
