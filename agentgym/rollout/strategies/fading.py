"""Fading hints: tasks that fail get hints, fewer the more often they succeed.

A part of each group gets hints from the environment's oracle in its first turns. Tokens sampled with a hint are trained
without it, with an off-policy correction. Sources: "Scaf-GRPO: Scaffolded Group Relative Policy Optimization for
Enhancing LLM Reasoning" (hints only where the policy fails), "GHPO: Adaptive Guidance for Stable and Efficient LLM
Reinforcement Learning" (strength by difficulty). Both show parts of a reference solution; here it is the next action.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import guidance
from agentgym.settings import Count, PositiveFraction, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class FadingOptions(Options):
    """Settings of fading hints."""

    kind: str = "fading"
    share: Annotated[float, Range(above=0, below=1)] = 0.5
    """Share of a group's episodes with hints."""
    most: Count = 4
    """Number of turns with a hint at success rate 0."""
    target: PositiveFraction = 0.5
    """Success rate from which a task gets no hints. Below it, the number of hints falls linearly."""


@guidance(
    "fading",
    paper="Scaf-GRPO; GHPO: Adaptive Guidance for Stable and Efficient LLM Reinforcement Learning",
    status="experimental",
    limits="needs an environment with an oracle",
    test="tests/rollout/test_branching.py::test_hints_fade_as_success_rises",
)
def fading(rate: float | None, group_size: int, options: FadingOptions) -> tuple[int, int]:
    """Return the number of episodes with hints and the number of their turns with a hint.

    Example:
        >>> [fading(rate, 8, FadingOptions()) for rate in (None, 0.0, 0.25, 0.5)]
        [(0, 0), (4, 4), (4, 2), (0, 0)]
    """
    if rate is None or rate >= options.target:
        return 0, 0
    num_hints = math.ceil(options.most * (1 - rate / options.target))
    return max(1, round(options.share * group_size)), num_hints
