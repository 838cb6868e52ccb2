"""Turns that several trajectories of a group sampled in one state, because episodes branched there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentgym.credit.table import Ints
from agentgym.types import Trajectory, TrajectoryGroup


def sibling_turns(group: TrajectoryGroup) -> Ints:
    """Return the number of the state of each turn in which several trajectories sampled.

    Two turns are sampled in one state if their trajectories share the turn before: a branch samples its first own turn
    where its parent sampled that turn. First turns of a task are sampled in one state, too. Copies of turns, turns
    after a hint, and turns of tokens from another context are no samples. States are counted from 0 in a group.

    Returns:
        ``[K]`` over the turns of valid trajectories, -1 where only one trajectory sampled or none branched.
    """
    members, first = group.trajectories, 0
    if all(one.parent < 0 for one in group.valid):
        return np.full(sum(len(one.turns) for one in group.valid), -1, dtype=np.int64)
    of_state: dict[tuple[int, int], list[int]] = {}
    place = 0
    for at, one in enumerate(members):
        for index, turn in enumerate(one.turns if one.status.is_evidence else ()):
            if index >= one.branch_turn and not turn.hint and not turn.num_rescored_tokens:
                of_state.setdefault((_sampled_by(members, at, index - 1), index), []).append(place)
            place += 1
    found = np.full(place, -1, dtype=np.int64)
    for places in of_state.values():
        if len(places) > 1:
            found[places] = first
            first += 1
    return found


def _sampled_by(members: Sequence[Trajectory], at: int, turn: int) -> int:
    """Return the member that sampled a turn that a member has, perhaps as a copy; -1 for a turn before the first."""
    while turn < members[at].branch_turn and turn >= 0:
        at = members[at].parent
    return at if turn >= 0 else -1
