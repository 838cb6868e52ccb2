"""Groups whose members pause after some turns, so that a strategy can choose which of them go on.

The others are cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from agentgym.rollout.program import Group
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

    async def __call__(self, group: Group) -> None:
        """Play all episodes up to the pause, and those that are chosen to their end."""
        episodes = [group.start() for _ in range(group.size)]
        await group.gather(*(episode.play(until=self.num_turns) for episode in episodes))
        chosen = self.going_on([episode.trajectory for episode in episodes])
        await group.gather(*(episodes[at].play() for at in chosen))
