"""Rubric scaffolds: members of a group see parts of a checklist, fewer from member to member and from step to step.

Source: "Breaking the Exploration Bottleneck: Rubric-Scaffolded Reinforcement Learning for General LLM Reasoning"
(RuscaRL). The first of n members sees all criteria, the last none, and the others a linear share between (intra-group
differentiation). A sigmoid of the step scales all shares down (inter-step decay). The criteria are drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import guidance
from agentgym.settings import Count, Range

SHOWN = "What you do is graded by these criteria:\n{criteria}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricOptions(Options):
    """Settings of rubric scaffolds."""

    kind: str = "rubric"
    text: str = ""
    """The checklist, one criterion per line; empty for the lines of ``judge.rubric``."""
    steps: Count = 20
    """Step at which half of the criteria is left. The paper takes a fifth of the run."""
    steepness: Annotated[float, Range(above=0)] = 0.5
    """Slope of the sigmoid, per step. The paper takes 125 divided by the number of the run's steps."""
    most: Count = 100
    """Number of turns of an episode whose prompts end with the criteria."""


@guidance(
    "rubric",
    paper="Breaking the Exploration Bottleneck: Rubric-Scaffolded Reinforcement Learning for General LLM Reasoning",
    status="reproduced",
    limits="one checklist for all tasks of an environment, at the end of the prompts instead of in the system prompt; "
    "the loss leaves it out and corrects for it as for hints",
    test="tests/rollout/test_rubric.py",
)
def rubric(criteria: Sequence[str], group_size: int, step: int, options: RubricOptions) -> tuple[int, int]:
    """Return the number of episodes that see criteria and the most of their turns that do.

    Example:
        >>> [rubric(["a", "b", "c"], 4, step, RubricOptions()) for step in (0, 20, 40)]
        [(3, 100), (2, 100), (0, 100)]
    """
    return sum(num > 0 for num in numbers(len(criteria), group_size, step, options)), options.most


def numbers(num_criteria: int, group_size: int, step: int, options: RubricOptions) -> list[int]:
    """Return the number of criteria that each member sees: ``round(K (n - 1 - i) / (n - 1) / (1 + exp(s (t - t0))))``.

    A lone member counts as a first one.

    Example:
        >>> numbers(4, 5, 0, RubricOptions()), numbers(4, 5, 20, RubricOptions())
        ([4, 3, 2, 1, 0], [2, 2, 1, 0, 0])
    """
    exponent = min((step - options.steps) * options.steepness, 700.0)  # exp overflows above 709
    left = 1 / (1 + math.exp(exponent))
    last = max(group_size - 1, 1)
    shares = [(last - at) / last if group_size > 1 else 1.0 for at in range(group_size)]
    return [round(num_criteria * share * left) for share in shares]


def checklists(
    criteria: Sequence[str], group_size: int, step: int, options: RubricOptions, rng: np.random.Generator
) -> list[str]:
    """Return the texts that members see, one for each member that sees any; drawn criteria keep their order."""
    texts = []
    for num in numbers(len(criteria), group_size, step, options):
        chosen = sorted(rng.choice(len(criteria), num, replace=False).tolist()) if num else []
        texts.append(SHOWN.format(criteria="\n".join(f"- {criteria[at]}" for at in chosen)) if chosen else "")
    return [text for text in texts if text]
