"""Groups whose members pause after some turns, so that a strategy can choose which of them go on.

A member that goes on is played again from its pause: the environment returns there by a native snapshot, or by replay,
and the sampling seeds are those of an episode without a pause. The episode is therefore the same as without one. The
others are cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from agentgym.env.env import Snapshot
from agentgym.rollout.branch import Branch
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Trajectory


@dataclass(frozen=True, slots=True)
class Prune:
    """The pause of a group's members, and the choice among those that have not ended by then."""

    num_turns: int
    """Turns before the pause."""
    choose: Callable[[Sequence[Trajectory]], Collection[int]]
    """Takes the members at the pause, and returns the indices of the paused ones that go on."""

    def going_on(self, paused: Sequence[Trajectory]) -> list[int]:
        """Return the indices of the members that go on, in order."""
        chosen = set(self.choose(paused))
        return [at for at, one in enumerate(paused) if one.is_stopped and at in chosen]


def to_go_on(request: RolloutRequest, paused: Trajectory, snapshots: Mapping[int, Snapshot]) -> RolloutRequest:
    """Return the request that plays a paused episode to its end."""
    turns = tuple((turn, at == 0) for segment in paused.segments for at, turn in enumerate(segment.turns))
    rest = Branch(
        parent=-1, observation=paused.observation, turns=turns, snapshot=snapshots.get(len(turns))
    )  # fmt: skip
    return replace(request, branch=rest, pause_after=None)


def whole_episode(paused: Trajectory, ended: Trajectory) -> Trajectory:
    """Return an episode as if it had not paused: none of its turns are copies."""
    return replace(
        ended,
        branch_turn=0,
        num_retries=paused.num_retries + ended.num_retries,
        voids=(*paused.voids, *ended.voids),
    )
