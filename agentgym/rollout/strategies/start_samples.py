"""Groups of the first steps are trained again beside the fresh ones: stored samples of the start policy, for DPH-RL.

Source: "The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in Reinforcement Learning with
Verifiable Reward" (DPH-RL). The release samples its data before training, and keeps right answers to tasks that the
start policy mostly solves. Here the store is what the first steps played.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import replay
from agentgym.settings import Count, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSamplesOptions(Options):
    """Settings of the replay of the start policy's samples."""

    kind: str = "start_samples"
    share: Annotated[float, Range(at_least=0, below=1)] = 0.25
    """Share of replayed groups among those that a step trains. The value is ours."""
    steps: Count = 1
    """First steps whose groups are stored. From the second on, groups are samples of a policy that was trained."""
    window: Count = 1_000_000
    """Steps after which a stored group is forgotten."""

    off_at_0 = "share"


@replay(
    "start_samples",
    paper="The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in RLVR (DPH-RL)",
    status="experimental",
    limits="the store is what the first steps played, the release's right answers to tasks that were mostly solved",
    test="tests/trainers/test_dph.py",
)
def start_samples(
    group_ages: Sequence[int], num_fresh: int, step: int, rng: np.random.Generator, options: StartSamplesOptions
) -> list[int]:
    """Return the stored groups that a step trains again, as indices in ascending order.

    Example:
        >>> start_samples([3, 3, 2, 1], 3, 3, np.random.default_rng(0), StartSamplesOptions(share=0.4))
        [0, 1]
        >>> start_samples([], 3, 0, np.random.default_rng(0), StartSamplesOptions())
        []
    """
    first = [at for at, age in enumerate(group_ages) if step - age < options.steps and age]
    num = min(len(first), round(num_fresh * options.share / (1 - options.share)))
    return sorted(int(at) for at in rng.choice(first, num, replace=False)) if num else []
