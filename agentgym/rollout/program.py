"""Programs: coroutines that play the episodes of a group.

A program decides while it plays: it starts episodes, pauses them, branches from them, shows hints, and leaves some out.
It is one function of a file::

    @program("extend", paper="...")
    async def extend(group: Group, options: ExtendOptions) -> None:
        async def one(episode: Episode) -> None:
            await episode.play(until=options.start)
            while episode.is_paused and promising(episode) and episode.num_turns < options.most:
                await episode.play(until=episode.num_turns + options.more)

        await group.gather(*(one(group.start()) for _ in range(group.size)))

The episodes that have ended when it returns are the group. Those that are paused are cancelled. A program reads only
its arguments, so a run that is resumed plays the same. For this reason the seed of an episode and the random numbers of
:attr:`Group.rng` depend on their place in the program, and not on who is faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agentgym.errors import ConfigError, blamed
from agentgym.plugins import Component, Named, Options, kind
from agentgym.rollout.branch import Start
from agentgym.rollout.episode import Episode, Member, Path, Stage, resolved
from agentgym.rollout.quorum import Quorum, first_valid
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.strategies.component import PROGRAMS
from agentgym.rollout.strategies.component import program as program  # noqa: PLC0414  (programs are written with it)
from agentgym.rollout.strategies.history import Visit
from agentgym.types import Task, Trajectory, TrajectoryGroup

PlayGroup = Callable[["Group"], Awaitable[None]]
"""A program with its options: it plays a group."""
MOST_STARTED = 1024
"""Episodes that a program may start, so that one that never ends is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that a program may read besides its group, fixed when the group is planned."""

    step: int = 0
    """Step of RL that the group was planned for."""
    visits: tuple[Visit, ...] = ()
    """Results of earlier groups of the task, the oldest first."""

    @property
    def rate(self) -> float | None:
        """Success rate of the task's last visit; None if there is none."""
        return self.visits[-1].num_successes / self.visits[-1].num_episodes if self.visits else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A program as a group is planned to be played by it."""

    play: PlayGroup
    facts: Facts = Facts()
    rng_seed: int = 0
    """Random numbers derive from it and the group's ordinal."""
    name: str = "the program"
    """Name of the program in errors."""
    uses: frozenset[str] | None = None
    """Means that the program has declared; None if it may use all."""


@dataclass(slots=True, eq=False)
class _Scope:
    """A part of a program that runs by itself: the program, or one coroutine of :meth:`Group.gather`."""

    path: Path = ()
    seen: tuple[Episode, ...] = ()
    """Episodes that had finished when it began."""
    num_events: int = 0
    num_started: int = 0
    draws: dict[int, np.random.Generator] = field(default_factory=dict)
    """Random numbers by the number of finished episodes; where an episode is dropped, those of before go on."""

    def next_path(self) -> Path:
        self.num_events += 1
        return (*self.path, self.num_events - 1)


class Group:
    """A group of episodes of one task from one start state, as its program plays it."""

    def __init__(self, stage: Stage, size: int, planned: Planned, quorum: Quorum) -> None:
        self.stage, self.facts = stage, planned.facts
        self._rng_seed = (planned.rng_seed, stage.request.ordinal)
        self.size = size
        """Number of episodes that the group is planned to have."""
        self.quorum = quorum
        """Numbers of episodes that :meth:`complete` starts and needs; both are ``size`` unless the run says other."""
        self._base = _Scope()
        self._scopes: dict[asyncio.Task[Any], _Scope] = {}

    @property
    def task(self) -> Task:
        """The task that all episodes play."""
        return self.stage.request.task

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers, which begin anew when another episode has finished, and in each coroutine of a gather."""
        scope, num = self._scope(), len(self.finished)
        if num not in scope.draws:
            scope.draws[num] = np.random.default_rng([*self._rng_seed, num, *scope.path])
        return scope.draws[num]

    @property
    def finished(self) -> tuple[Episode, ...]:
        """The episodes that have ended and belong to the group, in order; in a coroutine of :meth:`gather`, those that
        had ended before, and those that it made.
        """
        scope = self._scope()
        own = [one for one in self.stage.episodes if one.path[: len(scope.path)] == scope.path]
        own = sorted((one for one in own if one not in scope.seen), key=lambda one: one.path)
        return tuple(one for one in (*scope.seen, *own) if one.is_finished)

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The trajectories of the finished episodes, whose ``parent`` is an index among them."""
        return tuple(resolved(self.finished))

    @property
    def num_left(self) -> int:
        """The number of episodes until the group has ``size``."""
        return max(0, self.size - len(self.finished))

    @property
    def num_cancelled(self) -> int:
        """The number of episodes that were left out so far."""
        return sum(one.is_cut for one in self.stage.episodes)

    def start(self, *, demonstrated: bool = False) -> Episode:
        """Return a new episode, which begins at the start of the task when it is played.

        Args:
            demonstrated: True if the environment's oracle plays it.
        """
        if demonstrated:
            self.stage.need("demonstrations", "start(demonstrated=True)")
        return self.make(Start(demonstrates=demonstrated), None)

    def begin(self, start: Start) -> Episode:
        """Return a new episode by its start, whose ``parent`` is an index into :attr:`finished`."""
        if start.num_hints:
            self.stage.need("hints" if start.hint else "oracle", "hints")
        if start.demonstrates:
            self.stage.need("demonstrations", "demonstrations")
        if start.parent < 0 or not (start.is_branch or start.reflects):
            return self.make(start, None)
        finished = self.finished
        if start.parent >= len(finished) or finished[start.parent].has_failed:
            raise ConfigError(f"{start}: a branch needs an episode of the group that did not fail")
        return finished[start.parent].begin_branch(start)

    def part(self, size: int) -> Group:
        """Return a part of the group for another program to play, as in ``await arpo(group.part(4), ArpoOptions())``.

        Its episodes are episodes of the group; its :attr:`finished` has those of the part alone.
        """
        part = copy(self)
        part.size, part._base = size, _Scope(self._scope().next_path())
        part.quorum = Quorum(num_started=size, num_needed=size)
        return part

    async def play_by(self, program: Options | str) -> None:
        """Let another program play this group, or a part of it, by its options or its name."""
        component = PROGRAMS[program if isinstance(program, str) else kind(program)]
        made = (component.options or Named)() if isinstance(program, str) else program
        await component.call(**component.arguments({"group": self}, made))

    def drop(self, episode: Episode) -> None:
        """Leave an episode out of the group, whether it is paused or has ended. It is neither a failure nor data."""
        self._scope()
        episode.cancel()

    async def gather(self, *plays: Coroutine[Any, Any, Any]) -> list[Any]:
        """Run coroutines at the same time, as far as the limit of episodes in flight allows; return their results.

        If one of them raises, the others are cancelled.
        """
        finished, path = self.finished, self._scope().next_path()
        wrong = [one for one in plays if not asyncio.iscoroutine(one)]
        if wrong:
            for one in plays:
                if asyncio.iscoroutine(one):
                    one.close()
            raise self.stage.refuse(f"gathers {wrong[0]!r:.60}, expected coroutines such as episode.play()")
        jobs = [self._job(play, _Scope((*path, at), finished)) for at, play in enumerate(plays)]
        try:
            return list(await asyncio.gather(*jobs))
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def complete(self, episodes: Sequence[Episode], num_needed: int | None = None) -> None:
        """Play episodes to their end until ``num_needed`` have ended without a failure; leave the others out.

        By default all are needed. Which ones are first depends on the time that they take.
        """
        path, finished = self._scope().next_path(), self.finished
        jobs = [self._job(one.play(), _Scope((*path, at), finished)) for at, one in enumerate(episodes)]
        counting = await first_valid(jobs, lambda one: one.is_finished and not one.has_failed, num_needed or len(jobs))
        for at, episode in enumerate(episodes):
            if at not in counting:
                episode.cut_short()

    def _job(self, play: Coroutine[Any, Any, Any], scope: _Scope) -> asyncio.Task[Any]:
        job = asyncio.ensure_future(play)
        self._scopes[job] = scope
        return job

    def _scope(self) -> _Scope:
        """Return the scope of the calling task.

        Raises:
            ConfigError: the task is none of the program's, or the program has returned.
        """
        task = asyncio.current_task()
        scope = None if task is None else self._scopes.get(task)
        if scope is None:
            raise self.stage.refuse("plays outside its group: use await group.gather(...) in place of other tasks")
        base = self._base
        return scope if scope.path[: len(base.path)] == base.path else base

    def check_task(self) -> None:
        """Check that the calling task is one of the program's.

        Raises:
            ConfigError: it is another, or the program has returned.
        """
        self._scope()

    def make(self, start: Start, parent: Episode | None) -> Episode:
        """Return a new episode, whose number depends on its place in the program alone."""
        scope, stage = self._scope(), self.stage
        if len(stage.episodes) >= max(MOST_STARTED, 4 * self.size):
            raise stage.refuse(f"started {len(stage.episodes)} episodes for a group of {self.size}")
        own = (scope.num_started,) if not scope.path else (*scope.path, scope.num_started)
        scope.num_started += 1
        seed = derive_seed(stage.seed, stage.request.ordinal, *own)
        request = replace(stage.request, member=len(stage.episodes), seed=seed)
        finished = self.finished if parent is not None else ()
        known = finished if parent is None or parent in finished else (*finished, parent)
        member = Member(request, is_demonstration=start.demonstrates)
        episode = Episode(self, start, member, scope.next_path(), parent, known)
        stage.episodes.append(episode)
        return episode

    async def run(self, play: PlayGroup, env_name: str) -> TrajectoryGroup:
        """Run a program, and return the group that it played."""
        task = asyncio.current_task()
        assert task is not None
        self._scopes[task] = self._base
        try:
            await play(self)
        finally:
            self._scopes.clear()
        episodes = sorted(self.stage.episodes, key=lambda one: one.path)
        return TrajectoryGroup(
            ordinal=self.stage.request.ordinal,
            task=self.task,
            trajectories=tuple(resolved([one for one in episodes if one.is_finished])),
            cut=tuple(one.as_cut(number) for number, one in enumerate(episodes) if not one.is_finished),
            env_name=env_name,
        )


def played_by(component: Component, options: Any) -> PlayGroup:
    """Return a program with its options.

    Raises:
        ConfigError: it is a user's, and raises an error of its own or finishes no episode; the message names it.
    """

    async def play(group: Group) -> None:
        with blamed(f"{component.family} {component.name!r}") if component.is_own else nullcontext():
            await component.call(**component.arguments({"group": group}, options))
        if not group.finished:
            raise ConfigError(
                f"{component.family} {component.name!r} returned before an episode of its group had ended"
            )

    return play
