"""Branches where the policy became uncertain after a tool's answer.

Source: "Agentic Reinforced Policy Optimization" (ARPO; ``vllm_rollout_with_tools.py``). A group begins with ``initial``
episodes. A turn whose first tokens have an entropy above that of the episode's first turn is likelier to be played
anew, by other episodes that branch off before it. What is left over begins at the start of the task.

Two things differ from the release. It decides while episodes are played; here it is when they are done, which gives the
same decisions in the same order. It measures entropies by the ten likeliest tokens; here each is estimated by minus the
log-probability of the sampled token, since servers return no others.
"""

from __future__ import annotations

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
class ArpoOptions(Options):
    """Settings of ARPO's branching; the defaults are the release's."""

    kind: str = "arpo"
    initial: Annotated[float, Range(above=0, below=1)] = 0.5
    """Share of the group that begins at the start of the task."""
    beam: Annotated[int, Range(at_least=2)] = 2
    """An episode branches at most ``beam - 1`` times at a turn."""
    probability: Fraction = 0.5
    """Probability of a branch where the entropy has not changed."""
    weight: float = 0.2
    """Added to the probability for an entropy that rose by 1."""
    num_tokens: Count = 20
    """Tokens at the beginning of a turn whose entropies are summed."""
    log_vocabulary: Positive = 11.93
    """Entropies are divided by it: the logarithm of the vocabulary's size, of Qwen's by default."""


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
    """Return branches off the episodes that were not seen before, then starts at the beginning.

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
                likely = branch_probability(played[at], turn, options)
                draws = rng.random(options.beam - 1)
                starts += [Start(parent=at, turn=turn)] * int((draws < likely).sum())
    return starts[:num_left] or [START] * num_left


def branch_probability(trajectory: Trajectory, turn: int, options: ArpoOptions) -> float:
    """Return the probability of a branch before a turn: ``clip(probability + weight * change of entropy, 0, 1)``."""
    first, now = (trajectory.turns[at] for at in (trajectory.branch_turn, turn))
    change = first_entropy(now, options.num_tokens, options.log_vocabulary) - first_entropy(
        first, options.num_tokens, options.log_vocabulary
    )
    return float(np.clip(options.probability + options.weight * change, 0.0, 1.0))


def first_entropy(turn: Turn, num_tokens: int, log_vocabulary: float) -> float:
    """Return the entropy of a turn's first tokens, summed and divided by the logarithm of the vocabulary's size."""
    return -sum(turn.completion.logprobs[:num_tokens]) / log_vocabulary
