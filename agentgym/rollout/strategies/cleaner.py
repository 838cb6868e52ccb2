"""Purified episodes: a failed call is replaced by its later correction, and the failed turns between are left out.

Source: "CLEANER: Self-Purified Trajectories Boost Agentic Reinforcement Learning" (SAAR;
``verl/experimental/agent_loop/tool_agent_loop.py``). In a purified episode the environment returns to the state before
the failed turn. The turn then consists of the correction's tokens, and the policy samples what follows. The record is
therefore a real episode. If the two calls are similar, the thinking of the failed turn stays (shallow); otherwise the
correction replaces all of it (deep). The correction was sampled after the error message, so its log-probabilities are
computed again without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, ClassVar

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.strategies.component import branching
from agentgym.settings import Count, Fraction, Range
from agentgym.types import Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerOptions(Options):
    """Settings of purification; the defaults are the release's, but for ``initial``."""

    scores_copies: ClassVar[bool] = True
    """Copied tokens are scored in another context than they were sampled in."""

    kind: str = "cleaner"
    initial: Annotated[float, Range(above=0, below=1)] = 0.5
    """Share of the group that begins at the start of the task."""
    within: Count = 3
    """Largest number of turns from the failed turn to its correction."""
    similarity: Fraction = 0.5
    """Similarity of the two turns, after thinking, from which on the thinking of the failed turn stays."""
    probability: Fraction = 1.0
    """Share of the failed turns with a correction that are purified."""


@branching(
    "cleaner",
    paper="CLEANER: Self-Purified Trajectories Boost Agentic Reinforcement Learning",
    status="experimental",
    limits="each purified episode is a further member of the group, where the release replaces the original as it is "
    "played; the modulator purified leaves the original out of the loss. Only thinking counts as reasoning. The "
    "correction's tokens train with a ratio near 1, as in the paper, though they were sampled in another context",
    test="tests/rollout/test_cleaner.py::test_a_correction_takes_the_place_of_the_failed_turns",
)
def cleaner(
    played: Sequence[Trajectory], num_left: int, group_size: int, rng: np.random.Generator, options: CleanerOptions
) -> list[Start]:
    """Return one purification for each episode that has one, then starts at the beginning.

    Example:
        >>> cleaner((), 4, 4, np.random.default_rng(0), CleanerOptions()) == [START, START]
        True
    """
    if not played:
        return [START] * min(num_left, max(1, round(options.initial * group_size)))
    purified = {one.parent for one in played}
    starts: list[Start] = []
    for at, trajectory in enumerate(played):
        if not trajectory.status.is_evidence or at in purified:
            continue
        found = correction_of(trajectory, options.within)
        if found is not None and rng.random() < options.probability:
            failed, corrected = found
            starts.append(
                Start(
                    parent=at,
                    turn=failed,
                    num_tokens=kept_tokens(trajectory.turns[failed], trajectory.turns[corrected], options.similarity),
                    correction=corrected,
                )
            )
    return starts[:num_left] or [START] * num_left


def correction_of(trajectory: Trajectory, within: int) -> tuple[int, int] | None:
    """Return the first failed turn of an episode's own and the turn that corrects it, or None.

    The correction is the first turn with a call that did not fail, if only failed turns are between and if it comes at
    most ``within`` turns later.
    """
    turns = trajectory.turns
    for at in range(trajectory.branch_turn, len(turns)):
        if not has_failed(turns[at]) or (at > trajectory.branch_turn and has_failed(turns[at - 1])):
            continue
        for later in range(at + 1, min(len(turns), at + within + 1)):
            if not has_failed(turns[later]):
                if turns[later].action.calls and turns[later].kind == "act":
                    return at, later
                break
    return None


def has_failed(turn: Turn) -> bool:
    """Return True for a turn with a call that was invalid, or that a tool answered with an error."""
    if turn.kind != "act" or not turn.action.calls:
        return False
    return not turn.is_valid or any(reply.result is not None and reply.result.is_error for reply in turn.replies)


def kept_tokens(failed: Turn, corrected: Turn, similarity: float) -> int:
    """Return the number of thinking tokens of a failed turn that stay: none if the correction is not similar."""
    before, after = (str(turn.action.content).rpartition("</think>")[2] for turn in (failed, corrected))
    is_similar = SequenceMatcher(None, before, after).ratio() >= similarity
    return failed.num_thinking_tokens if is_similar else 0
