"""Branches within a turn: the policy samples again from a token that surprised it.

Source: "CURE: Critical-Token-Guided Re-Concatenation for Entropy-Collapse Prevention"
(``recipe/CURE_First_Stage/dapo_ray_trainer.py``). A group begins with ``initial`` episodes. In each, one of the
``num_critical`` tokens with the largest surprise is drawn. Others copy the episode up to this token, which they do not
copy, and sample from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.strategies.component import branching
from agentgym.settings import Count, Range
from agentgym.types import FinishReason, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class CureOptions(Options):
    """Settings of branches within a turn; the defaults are the release's."""

    kind: str = "cure"
    initial: Annotated[float, Range(above=0, below=1)] = 0.25
    """Share of the group that begins at the start of the task."""
    num_critical: Count = 20
    """Number of tokens of an episode, those with the largest surprise, from which one is drawn."""


@branching(
    "cure",
    paper="CURE: Critical-Token-Guided Re-Concatenation for Entropy-Collapse Prevention",
    status="experimental",
    limits="surprise is that of the sampled token, where the release has the entropy; tokens that end a turn are left "
    "out, where it leaves out special tokens and single characters. The second stage is a run without branches",
    test="tests/rollout/test_cure.py::test_cure_branches_before_a_surprising_token",
)
def cure(
    played: Sequence[Trajectory], num_left: int, group_size: int, rng: np.random.Generator, options: CureOptions
) -> list[Start]:
    """Return starts at the beginning, then branches from one critical token of each of these episodes.

    Example:
        >>> cure((), 16, 16, np.random.default_rng(0), CureOptions()) == [START] * 4
        True
    """
    if not played:
        return [START] * min(num_left, max(1, round(options.initial * group_size)))
    roots = [at for at, one in enumerate(played) if one.parent < 0 and one.status.is_evidence]
    found = [start for at in roots if (start := critical_start(played[at], at, rng, options.num_critical))]
    return [found[at % len(found)] for at in range(num_left)] if found else [START] * num_left


def critical_start(trajectory: Trajectory, at: int, rng: np.random.Generator, num_critical: int) -> Start | None:
    """Return a branch before one of an episode's most surprising tokens, or None if it has no token to branch at.

    Args:
        trajectory: the episode.
        at: its index in its group.
        rng: draws the token.
        num_critical: number of tokens to draw from.
    """
    tokens = [
        (logprob, turn, place)
        for turn, played in enumerate(trajectory.turns)
        if played.kind == "act"
        for place, logprob in enumerate(played.completion.logprobs)
        if (turn or place) and not _ends(played.completion.finish_reason, place, len(played.completion.logprobs))
    ]
    if not tokens:
        return None
    _, turn, place = sorted(tokens)[: min(num_critical, len(tokens))][int(rng.integers(min(num_critical, len(tokens))))]
    return Start(parent=at, turn=turn, num_tokens=place)


def _ends(reason: FinishReason, place: int, num_tokens: int) -> bool:
    """Return True for the token that ends a turn."""
    return reason is FinishReason.STOP and place == num_tokens - 1
