"""Groups that are played at once, or in waves that begin where earlier episodes were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from agentgym.rollout.branch import START, Start
from agentgym.rollout.program import Group, Planned, PlayGroup
from agentgym.rollout.strategies.component import USES
from agentgym.types import Trajectory

ChooseStarts = Callable[[Sequence[Trajectory], int], Sequence[Start]]
"""A function that chooses the starts of a group's next episodes from the finished ones and the number left."""


@dataclass(frozen=True, slots=True)
class AtOnce:
    """A program that plays all episodes of a group at once, from the start of their task."""

    helped: Sequence[Start] = ()
    """Starts of the last episodes, with hints or demonstrations."""

    async def __call__(self, group: Group) -> None:
        """Play as many episodes as the run starts, until as many as it needs have ended."""
        plain = [START] * (group.quorum.num_started - len(self.helped))
        await group.complete([group.begin(start) for start in [*plain, *self.helped]], group.quorum.num_needed)


UNBRANCHED = frozenset(USES) - {"branches"}
"""Means of groups in which no episode branches, so that no snapshots are taken."""
AT_ONCE = Planned(play=AtOnce(), uses=UNBRANCHED)


@dataclass(frozen=True, slots=True)
class InWaves:
    """A program that plays a group in waves, from the starts that ``choose`` returns, until none are left."""

    choose: ChooseStarts

    async def __call__(self, group: Group) -> None:
        """Play waves. Once as many episodes as the group is large were stopped, no more are."""
        while group.num_left and (starts := self.choose(group.trajectories, group.num_left)[: group.num_left]):
            if group.num_cancelled >= group.size:  # a policy that always does the same would be stopped forever
                starts = [replace(start, look_ahead=None) for start in starts]
            episodes = [group.begin(start) for start in starts]
            await group.gather(*(episode.play() for episode in episodes))


@dataclass(frozen=True, slots=True)
class Extended:
    """A program that plays another one, and then more episodes, by the success rate of the group."""

    program: PlayGroup
    num_more: Callable[[float], int]

    async def __call__(self, group: Group) -> None:
        """Play the group, and ``num_more`` of its success rate; none after a group without evidence."""
        await self.program(group)
        if valid := [one for one in group.trajectories if one.status.is_evidence]:
            more = [group.start() for _ in range(self.num_more(fmean(bool(one.success) for one in valid)))]
            await group.gather(*(episode.play() for episode in more))
