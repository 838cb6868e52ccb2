"""Branches at uncertain turns, which are stopped if they soon resemble another episode.

Source: "Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration in Reinforcement Learning with
Verifiable Rewards" (LATR; ``model/generation.py``). A group begins with ``initial`` episodes. The most uncertain turns
of new episodes are then played anew. A branch that after ``ahead`` turns resembles another episode with the same turns
before it is stopped, and its place goes to another one. What is left over begins at the start of the task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Literal

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.look_ahead import LookAhead
from agentgym.rollout.strategies.component import branching
from agentgym.settings import Count, Range
from agentgym.types import Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class LatrOptions(Options):
    """Settings of look-ahead branching."""

    kind: str = "latr"
    initial: Annotated[float, Range(above=0, below=1)] = 0.25
    """Share of the group that begins at the start of the task. LATR anneals its own share, ``1 - initial``; a schedule
    of this key does so, too."""
    share: Annotated[float, Range(above=0, at_most=1)] = 0.5
    """Share of an episode's own turns, the most uncertain ones, that branch."""
    num_tokens: Count = 20
    """Number of tokens at the start of a turn whose mean surprise is its uncertainty."""
    ahead: Count = 1
    """Number of turns after which a branch is compared."""
    by: Literal["action", "state", "tokens"] = "action"
    """``action``: stop branches with the same actions as another episode. ``state``: stop branches that reach the same
    state. ``tokens``: stop branches whose tokens are closer than ``min_distance``, as in LATR."""
    min_distance: Annotated[float, Range(above=0, at_most=1)] = 0.4
    """Smallest normalised edit distance of the tokens."""

    def check_together(self) -> None:
        self.check(
            is_ok=self.by == "tokens" or self.min_distance == 0.4,
            message=f"min_distance is read with by=tokens, got by={self.by}",
        )

    def uncertainty(self, turn: Turn) -> float:
        """Return the mean surprise of a turn's first tokens in nats."""
        return -fmean(turn.completion.logprobs[: self.num_tokens] or (0.0,))


@branching(
    "latr",
    paper="Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration in Reinforcement Learning with "
    "Verifiable Rewards",
    status="experimental",
    limits="branches begin with turns, where LATR takes the second likeliest token; uncertainty is estimated from the "
    "sampled tokens",
    test="tests/rollout/test_trees.py::test_latr_branches_at_the_most_uncertain_turns",
)
def latr(
    played: Sequence[Trajectory], num_seen: int, num_left: int, group_size: int, options: LatrOptions
) -> list[Start]:
    """Return branches of the new episodes, the most uncertain turns first, then starts at the beginning.

    Example:
        >>> latr((), 0, 8, 8, LatrOptions()) == [START, START]
        True
    """
    if not played:
        return [START] * min(num_left, max(1, round(options.initial * group_size)))
    found: list[tuple[float, int, int]] = []
    for at in range(num_seen, len(played)):
        turns = played[at].turns if played[at].status.is_evidence else ()
        own = range(played[at].branch_turn + 1, len(turns) - options.ahead)  # others are too late to be compared
        ranked = sorted((-options.uncertainty(turns[turn]), at, turn) for turn in own)
        found += ranked[: math.ceil(options.share * len(ranked))]
    rule = LookAhead(num_turns=options.ahead, by=options.by, min_distance=options.min_distance)
    starts = [Start(parent=at, turn=turn, look_ahead=rule) for _, at, turn in sorted(found)]
    return starts[:num_left] or [START] * num_left
