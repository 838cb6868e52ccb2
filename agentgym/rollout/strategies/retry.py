"""Retries: failed episodes run again from the turn at which they went wrong.

Source: "Reflect-then-Retry Reinforcement Learning" (R3L). Half of a group begins at the start. Each failure is then
retried from a turn, the pivot, and the modulator ``r3l_pivot`` excludes the common turns from the loss. With
``pivot=reflect``, the model reads its failure, names the pivot and gives itself advice, as in the paper. Otherwise the
pivot is computed from the episode, and the environment's oracle may give hints (``num_hints``). Training omits advice
and hints. Unlike the paper, agentgym does not train the model to reflect with supervised learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.strategies.component import branching
from agentgym.settings import Count, Natural, Range
from agentgym.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions(Options):
    """Settings of retries."""

    kind: str = "retry"
    initial: Annotated[float, Range(above=0, below=1)] = 0.5
    """Share of the group that begins at the start of the task."""
    pivot: Literal["fault", "random", "reflect", "judge"] = "fault"
    """``fault``: the first turn that was invalid or void, or to whose state a later turn returned; the middle of an
    episode without such a turn. ``random``: any turn but the first. ``reflect``: the turn that the model names, or
    ``fault`` if it names none. ``judge``: the first wrong turn, as the judge finds it (SCOPE), or ``fault``."""
    num_hints: Natural = 0
    """Number of turns of a retry, from the pivot, with a hint from the environment's oracle."""
    max_new_tokens: Count = 256
    """Largest length of a reflection (``pivot=reflect``), whatever an action may have; at most half of the context."""

    def check_together(self) -> None:
        self.check(
            is_ok=self.pivot != "reflect" or not self.num_hints,
            message="with pivot=reflect the model advises itself: leave num_hints out",
        )


@branching(
    "retry",
    paper="Reflect-then-Retry Reinforcement Learning",
    status="experimental",
    limits="the model is not trained to reflect",
    test="tests/rollout/test_branching.py::test_failures_are_retried_from_their_fault",
)
def retry(
    played: Sequence[Trajectory], num_left: int, group_size: int, rng: np.random.Generator, options: RetryOptions
) -> list[Start]:
    """Return one retry per failure, then starts at the beginning.

    Example:
        >>> retry((), 4, 4, np.random.default_rng(0), RetryOptions()) == [START, START]
        True
    """
    if not played:
        return [START] * min(num_left, max(1, round(options.initial * group_size)))
    failed = [at for at, t in enumerate(played) if t.status.is_evidence and not t.success and len(t.turns) > 1]
    starts = [
        Start(
            parent=at,
            turn=pivot_of(played[at], rng, options),
            num_hints=options.num_hints,
            reflects=options.pivot in ("reflect", "judge"),
        )
        for at in failed[:num_left]
    ]
    return starts + [START] * (num_left - len(starts))


def pivot_of(trajectory: Trajectory, rng: np.random.Generator, options: RetryOptions) -> int:
    """Return the turn at which a retry begins, at least 1."""
    turns = trajectory.turns
    if options.pivot == "random":
        return int(rng.integers(1, len(turns)))
    first_of: dict[str | None, int] = {}
    for at, turn in enumerate(turns):
        if not turn.is_valid or turn.is_void:
            return max(1, at)
        if turn.state_key is not None and turn.state_key in first_of:
            return max(1, first_of[turn.state_key])  # the action in this state led back to it
        first_of[turn.state_key] = at
    return max(1, len(turns) // 2)
