"""Look-ahead: a branch that resembles another episode after its first turns is stopped.

Source: "Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration in Reinforcement Learning with
Verifiable Rewards" (LATR), whose branches are token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from agentgym.credit.columns import action_key
from agentgym.types import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAhead:
    """A rule by which a branch is stopped after its first own turns."""

    num_turns: int = 1
    """Number of own turns before the comparison."""
    by: Literal["action", "state", "tokens"] = "action"
    """``action``: stop if these turns did what another episode did. ``state``: stop if they led to the same state.
    ``tokens``: stop if their tokens are closer than ``min_distance``."""
    min_distance: float = 0.4
    """Smallest edit distance of the tokens, divided by the longer length."""

    def stops(self, own: Sequence[Turn], state_key: str, others: Sequence[Sequence[Turn]]) -> bool:
        """Return True if the branch must stop.

        Args:
            own: own turns of the branch so far.
            state_key: key of the state after them.
            others: for each other episode its turns from the branching turn on.
        """
        if len(own) != self.num_turns:
            return False
        return any(len(other) > len(own) and self._resembles(own, state_key, other) for other in others)

    def _resembles(self, own: Sequence[Turn], state_key: str, other: Sequence[Turn]) -> bool:
        match self.by:
            case "action":
                return [action_key(turn) for turn in own] == [action_key(turn) for turn in other[: len(own)]]
            case "state":
                return other[len(own)].state_key == state_key
            case "tokens":
                return edit_distance(tokens_of(own), tokens_of(other[: len(own)])) < self.min_distance


def tokens_of(turns: Sequence[Turn]) -> tuple[int, ...]:
    """Return the sampled tokens of some turns."""
    return tuple(chain.from_iterable(turn.completion.token_ids for turn in turns))


def edit_distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Return Levenshtein's distance divided by the longer length, from 0 for equal sequences to 1.

    Example:
        >>> edit_distance((1, 2, 3, 4), (1, 3, 4)), edit_distance((), ())
        (0.25, 0.0)
    """
    row = list(range(len(other) + 1))
    for at, token in enumerate(one, 1):
        above, row[0] = row[0], at
        for column, compared in enumerate(other, 1):
            best = min(row[column] + 1, row[column - 1] + 1, above + (token != compared))
            above, row[column] = row[column], best
    return row[-1] / max(1, len(one), len(other))
