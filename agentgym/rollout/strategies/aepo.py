"""Branches as ARPO's, with a budget by the entropies of a first episode and a penalty on branching at every turn.

Source: "Agentic Entropy-Balanced Policy Optimization" (AEPO). One episode is played first. Where its first turn was
more uncertain than those after a tool's answer, more of the group begins at the start; else more branches. An episode
that has just branched is less likely to branch again. The form of that penalty is agentgym's: ``penalty`` times the
number of branchings in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.strategies.arpo import first_entropy
from agentgym.rollout.strategies.component import branching
from agentgym.settings import Count, Fraction, Positive
from agentgym.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class AepoOptions(Options):
    """Settings of AEPO's branching."""

    kind: str = "aepo"
    beta: float = 0.2
    """Strength with which the entropies of the first episode move the budget."""
    probability: Fraction = 0.5
    """Probability of a branch where the entropy has not changed."""
    weight: float = 0.2
    """Added to the probability for an entropy that rose by 1."""
    penalty: Fraction = 0.2
    """Share of the probability that each branching in a row takes away."""
    num_tokens: Count = 20
    """Tokens at the beginning of a turn whose entropies are summed."""
    log_vocabulary: Positive = 11.93
    """Entropies are divided by it: the logarithm of the vocabulary's size, of Qwen's by default."""


@branching(
    "aepo",
    paper="Agentic Entropy-Balanced Policy Optimization",
    status="experimental",
    limits="the form of the penalty is agentgym's; entropies are estimated from the sampled tokens",
    test="tests/rollout/test_branching.py::test_aepo_shares_its_budget_by_the_first_episode",
)
def aepo(
    played: Sequence[Trajectory],
    num_seen: int,
    num_left: int,
    group_size: int,
    rng: np.random.Generator,
    options: AepoOptions,
) -> list[Start]:
    """Return one start, then those that the first episode asks for, then branches, then starts again.

    Example:
        >>> aepo((), 0, 4, 4, np.random.default_rng(0), AepoOptions()) == [START]
        True
    """
    if not played:
        return [START]
    num_roots = roots_of(played[0], group_size, options)
    if num_seen == 0 and num_roots > 1:
        return [START] * min(num_left, num_roots - 1)
    num_considered = num_seen if num_seen > 1 or num_roots == 1 else 0
    new = [at for at in range(num_considered, len(played)) if played[at].status.is_evidence]
    starts: list[Start] = []
    in_a_row = dict.fromkeys(new, 0)
    for turn in range(1, max((len(played[at].turns) for at in new), default=0)):
        for at in new:
            if played[at].branch_turn < turn < len(played[at].turns):
                branches = rng.random() < _probability(played[at], turn, in_a_row[at], options)
                in_a_row[at] = in_a_row[at] + 1 if branches else 0
                starts += [Start(parent=at, turn=turn)] * branches
    return starts[:num_left] or [START] * num_left


def roots_of(first: Trajectory, group_size: int, options: AepoOptions) -> int:
    """Return how many episodes begin at the start: ``k sigma(beta (H of the first turn - mean H of the others))``.

    At least 1; the half of the group where the first episode failed or has one turn.
    """
    if not first.status.is_evidence or len(first.turns) < 2:
        return max(1, group_size // 2)
    entropies = [first_entropy(turn, options.num_tokens, options.log_vocabulary) for turn in first.turns]
    gap = entropies[0] - sum(entropies[1:]) / (len(entropies) - 1)
    return max(1, round(group_size / (1 + math.exp(-options.beta * gap))))


def _probability(trajectory: Trajectory, turn: int, num_in_a_row: int, options: AepoOptions) -> float:
    first, now = (
        first_entropy(trajectory.turns[at], options.num_tokens, options.log_vocabulary)
        for at in (trajectory.branch_turn, turn)
    )
    left = 1 - min(1.0, options.penalty * num_in_a_row)
    return float(np.clip((options.probability + options.weight * (now - first)) * left, 0.0, 1.0))
