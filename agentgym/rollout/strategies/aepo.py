"""Branching like ARPO's, with a budget from the entropies of a first episode and a penalty on repeated branching.

Source: "Agentic Entropy-Balanced Policy Optimization" (AEPO). One episode runs first. If its first turn was more
uncertain than the turns after a tool's answer, more of the group begins at the start; otherwise more episodes branch.
An episode that has just branched is less likely to branch again. The form of this penalty is agentgym's own:
``penalty`` times the number of consecutive branchings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.strategies.component import branching
from agentgym.settings import Count, Fraction, Positive, Range
from agentgym.types import Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBranchingOptions(Options):
    """Settings of branching at turns whose first tokens have a higher entropy."""

    probability: Fraction = 0.5
    """Probability of a branch if the entropy has not changed."""
    weight: float = 0.2
    """Added probability per unit of normalised entropy increase."""
    num_tokens: Count = 20
    """Number of tokens at the start of a turn whose entropies are summed."""
    log_vocabulary: Positive = 11.93
    """Divisor of entropies: the natural logarithm of the vocabulary size; by default Qwen's."""

    def entropy_of(self, turn: Turn) -> float:
        """Return the entropy of a turn's first tokens, summed and divided by ``log_vocabulary``."""
        return -sum(turn.completion.logprobs[: self.num_tokens]) / self.log_vocabulary

    def chance(self, trajectory: Trajectory, turn: int) -> float:
        """Return ``probability + weight * change of entropy`` since the turn at which the episode branched."""
        first, now = (self.entropy_of(trajectory.turns[at]) for at in (trajectory.branch_turn, turn))
        return self.probability + self.weight * (now - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class AepoBranchingOptions(EntropyBranchingOptions):
    """Settings of AEPO's branching."""

    kind: str = "aepo"
    beta: float = 0.2
    """Strength with which the entropies of the first episode change the budget."""
    penalty: Fraction = 0.2
    """Share of the probability that each consecutive branching removes."""


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
    options: AepoBranchingOptions,
) -> list[Start]:
    """Return one start, then the starts that the first episode suggests, then branches, then further starts.

    Example:
        >>> aepo((), 0, 4, 4, np.random.default_rng(0), AepoBranchingOptions()) == [START]
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


def roots_of(first: Trajectory, group_size: int, options: AepoBranchingOptions) -> int:
    """Return the number of episodes that begin at the start: ``k sigma(beta (H of the first turn - mean H of the
    others))``.

    It is at least 1, and half of the group if the first episode failed or has one turn.
    """
    if not first.status.is_evidence or len(first.turns) < 2:
        return max(1, group_size // 2)
    entropies = [options.entropy_of(turn) for turn in first.turns]
    gap = entropies[0] - sum(entropies[1:]) / (len(entropies) - 1)
    return max(1, round(group_size / (1 + math.exp(-options.beta * gap))))


def _probability(trajectory: Trajectory, turn: int, num_in_a_row: int, options: AepoBranchingOptions) -> float:
    left = 1 - min(1.0, options.penalty * num_in_a_row)
    return float(np.clip(options.chance(trajectory, turn) * left, 0.0, 1.0))


# ----------------------------------------------------- branches where the policy became uncertain after a tool's answer
# Source: "Agentic Reinforced Policy Optimization" (ARPO; ``vllm_rollout_with_tools.py``). A group begins with
# ``initial`` episodes. A turn whose first tokens have an entropy above that of the episode's first turn is likelier to
# be played anew, by other episodes that branch off before it. What is left over begins at the start of the task.
# Two things differ from the release. It decides while episodes are played; here it is when they are done, which gives
# the same decisions in the same order. It measures entropies by the ten likeliest tokens; here each is estimated by
# minus the log-probability of the sampled token, since servers return no others.


@dataclass(frozen=True, slots=True, kw_only=True)
class ArpoOptions(EntropyBranchingOptions):
    """Settings of ARPO's branching; the defaults are the release's."""

    kind: str = "arpo"
    initial: Annotated[float, Range(above=0, below=1)] = 0.5
    """Share of the group that begins at the start of the task, between 0 and 1."""
    beam: Annotated[int, Range(at_least=2)] = 2
    """An episode branches at most ``beam - 1`` times per turn."""


@branching(
    "arpo",
    paper="Agentic Reinforced Policy Optimization",
    status="experimental",
    limits="entropies are estimated from the sampled tokens",
    test="tests/rollout/test_branching.py::test_arpo_branches_where_entropy_rose",
)
def arpo(
    played: Sequence[Trajectory],
    num_seen: int,
    num_left: int,
    group_size: int,
    rng: np.random.Generator,
    options: ArpoOptions,
) -> list[Start]:
    """Return branches of the new episodes, then starts at the beginning.

    Example:
        >>> arpo((), 0, 4, 4, np.random.default_rng(0), ArpoOptions()) == [START, START]
        True
    """
    if not played:
        return [START] * min(num_left, max(1, round(options.initial * group_size)))
    new = [at for at in range(num_seen, len(played)) if played[at].status.is_evidence]
    starts: list[Start] = []
    for turn in range(1, max((len(played[at].turns) for at in new), default=0)):
        for at in new:
            if played[at].branch_turn < turn < len(played[at].turns):
                likely = np.clip(options.chance(played[at], turn), 0.0, 1.0)
                draws = rng.random(options.beam - 1)
                starts += [Start(parent=at, turn=turn)] * int((draws < likely).sum())
    return starts[:num_left] or [START] * num_left
