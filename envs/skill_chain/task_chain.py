"""Similar tasks of another environment in a row, each played by a player with a conversation of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import numpy as np

from agentgym.env.env import Env, Snapshot, StepInfo
from agentgym.env.match_env import MatchEnv
from agentgym.env.sub_agents import AsksAgents
from agentgym.envs.since_reset import SinceReset
from agentgym.envs.skill_chain.chain import Chain, Played, kind_in, runs_of, scenario_of, with_text
from agentgym.errors import ResetNeededError, ToolError, UsageError, require_known
from agentgym.registry import make
from agentgym.settings import Range, check_number
from agentgym.tool import error_result, tools_of
from agentgym.types import Call, Message, Observation, RewardPart, Task, TextPart, ToolCall, ToolResult, ToolSpec

Result = TypeVar("Result")
Same = Literal["kind", "scenario", "any"]
Earlier = Literal["self", "oracle"]
_SAMES: Final = ("kind", "scenario", "any")
_EARLIER: Final = ("self", "oracle")
_MOST_TRIED = 2000  # tasks that are looked at for a similar one
OVER: Final = ToolError("the task has ended; this call was not run", "episode_over")


@dataclass(frozen=True, slots=True)
class Fresh:
    """A request to reset the wrapped environment to a task."""

    task: Task
    seed: int


Work: TypeAlias = Generator[Message | Fresh, Any, Result]
"""Work that asks for steps and resets of the wrapped environment, so that it is written once for both ways to wait."""


class TaskChainEnv(MatchEnv):
    """Play similar tasks of another environment in a row, with further tools that a subclass adds by ``@tool``.

    Args:
        env: the wrapped environment: an id, ``module:Id`` or ``file.py:Id``. It must have tools and one player.
        env_kwargs: its arguments.
        num_tasks: number of tasks in a chain.
        same: tasks of a chain have the same ``kind`` (:attr:`Env.task_type`), are of one ``scenario`` (their ids are
            equal up to the last ``_``, as AppWorld's), or are ``any``. No task is twice in a chain.
        earlier: ``self``: the agent plays all tasks; ``oracle``: the environment's oracle plays all but the last, and
            the agent is its only player. Evaluations use the second.
        max_turns: turns of all tasks that the agent plays; by default those of the wrapped environment for each task.

    Raises:
        UsageError: the wrapped environment cannot be used, or a value is out of range.
    """

    chain = SinceReset[Chain]()
    """State of the current episode."""

    def __init__(
        self,
        *,
        env: str = "agentgym/Household-v0",
        env_kwargs: Mapping[str, object] | None = None,
        num_tasks: int = 2,
        same: Same = "kind",
        earlier: Earlier = "self",
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        require_known("same", same, _SAMES)
        require_known("earlier", earlier, _EARLIER)
        check_number("num_tasks", num_tasks, Range(at_least=2 if earlier == "oracle" else 1))
        self.num_tasks, self.same, self.first = num_tasks, same, num_tasks - 1 if earlier == "oracle" else 0
        self.players = tuple(f"task {number + 1}" for number in range(num_tasks))  # type: ignore[misc]  # by instance
        if max_turns is not None and max_turns < self.num_players:
            raise UsageError(f"max_turns counts the turns of {self.num_players} tasks together, got {max_turns}")
        self.own_tools = tools_of(type(self))
        self.make_world: Callable[[], Env] = partial(make, env, **dict(env_kwargs or {}))
        self.world = self.make_world()
        _check_world(self.world, env, set(self.own_tools))
        self._world_turns = self.world.max_turns
        self.takes_words = self.world.takes_words  # type: ignore[misc]  # by instance
        default = None if self._world_turns is None else self._world_turns * self.num_players
        super().__init__(max_turns=max_turns or default, render_mode=render_mode)

    # ------------------------------------------------------------------------------------ methods to implement

    @abstractmethod
    def briefing(self) -> str:
        """Return a paragraph for the first message of a task."""

    @abstractmethod
    def call_own(self, call: ToolCall) -> Work[ToolResult]:
        """Run a call of an own tool.

        Raises:
            ToolError: the call cannot run.
        """

    @abstractmethod
    def bonuses_of(self, number: int) -> Sequence[RewardPart]:
        """Return the reward parts of a task for what came of it in the whole chain."""

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:
        return self._run(self._started(task))

    async def astart(self, task: Task) -> Observation:
        return await self._arun(self._started(task))

    def respond(self, action: Message) -> Observation:
        return self._run(self._turn(action))

    async def arespond(self, action: Message) -> Observation:
        return await self._arun(self._turn(action))

    def play(self, action: Message) -> Work[tuple[Observation, StepInfo]]:
        """Play an action in the wrapped environment, and pass its reward on."""
        observation, _, terminated, truncated, info = yield action
        for part in info["reward_parts"]:
            self.award(part.value, part.name, part.role)
        if not info["is_valid"]:
            self.refuse()
        is_over = terminated or truncated
        self.note(
            parts=self.now.earned(info["reward_parts"]),
            is_over=is_over,
            is_success=is_over and bool(info.get("success")),
        )
        return observation, info

    @property
    def now(self) -> Played:
        """The current task."""
        if not self.chain.played:
            raise ResetNeededError(f"{self.env_id}: no task before reset()")
        return self.chain.played[-1]

    def note(self, **changes: Any) -> None:
        """Note what happened in the current task."""
        self.chain = replace(self.chain, played=(*self.chain.played[:-1], replace(self.now, **changes)))

    def _started(self, task: Task) -> Work[Observation]:
        self.chain = Chain()
        yield from self._open(task, self.episode.seed)
        while self.chain.at < self.first:
            yield from self._turn(self.oracle())
        return self.now.said

    def _open(self, task: Task, seed: int) -> Work[None]:
        """Reset the wrapped environment to the chain's next task."""
        self._limit_turns(self._world_turns)
        observation = yield Fresh(task, seed)
        self._limit_turns(self.world.max_turns)  # some environments set it by task
        said = with_text(observation, self.briefing())
        began = Played(task=task, said=said, read=tuple(message.text for message in said))
        self.chain = replace(self.chain, played=(*self.chain.played, began))

    def _turn(self, action: Message) -> Work[Observation]:
        """Run the calls of a turn in order, and begin the next task if this one ends."""
        self.note(num_turns=self.now.num_turns + 1)
        said: Observation = ()
        runs = list(runs_of(action.calls, self.own_tools))
        if not any(is_own for is_own, _ in runs):
            said, info = yield from self.play(action)
            if "played" in info:
                self.play_instead(info["played"])
            runs = []
        for is_own, calls in runs:
            if self.now.is_over:
                said += tuple(self._refused(call, OVER) for call in calls)
            elif is_own:
                said += ((yield from self._own_reply(cast(ToolCall, calls[0]))),)
            else:
                said += (yield from self.play(Message("assistant", "", calls)))[0]
        self.note(said=said, read=(*self.now.read, *(message.text for message in said)))
        limit = self._turns_per_task
        if self.now.is_over or (limit is not None and self.now.num_turns >= limit):
            return (yield from self._leave_task(said))
        return said

    def _own_reply(self, call: ToolCall) -> Work[Message]:
        try:
            result = yield from self.call_own(call)
        except ToolError as error:
            return self._refused(call, error)
        if result.is_error:
            self.refuse()
        return _tool_message(result)

    def _refused(self, call: Call, error: ToolError) -> Message:
        self.refuse()
        return _tool_message(error_result(error, *((call.name, call.id) if isinstance(call, ToolCall) else ())))

    def _leave_task(self, said: Observation) -> Work[Observation]:
        """Begin the next task, or end the episode and award the bonuses."""
        has_ended = self.now.is_over and not self.world.episode.is_cut_off
        self.note(is_over=True)
        if self.chain.at < self.num_tasks - 1:
            yield from self._open_similar()
            return (*said, *self.now.said)
        for number in range(self.first, self.num_tasks):
            for part in self.bonuses_of(number):
                self.award(part.value, part.name, part.role)
        if has_ended:
            self.finish()
        else:
            self.truncate()
        return said

    def _open_similar(self) -> Work[None]:
        """Begin a task that is similar to the chain's and not among them. The first task decides which."""
        before, first, kind = self.chain, self.chain.played[0].task, self.world.task_type
        known = {one.task.content_hash for one in before.played}
        pool = self.world.tasks(first.split)
        start = int(np.random.default_rng(abs(first.seed)).integers(max(1, len(pool))))
        for number in range(min(len(pool), _MOST_TRIED)):
            task = pool[(start + number) % len(pool)]
            if task.content_hash in known or not self._may_be_similar(first, task, kind):
                continue
            yield from self._open(task, task.seed)
            if self.same != "kind" or self.world.task_type == kind:
                return
            self.chain = before
        of = {"kind": f" of the kind {kind!r}", "scenario": f" of the scenario {scenario_of(first)!r}"}
        raise UsageError(
            f"{self.env_id} over {self.world.env_id}: no other task{of.get(self.same, '')} among "
            f"{min(len(pool), _MOST_TRIED):,} of the split {first.split!r}; set same=any, or take another environment"
        )

    def _may_be_similar(self, first: Task, task: Task, kind: str) -> bool:
        """Return False for a task that need not be begun to see that it is not similar."""
        if self.same == "scenario":
            return scenario_of(task) == scenario_of(first) != ""
        is_told_by_data = type(self.world).task_type is Env.task_type
        return self.same == "any" or not is_told_by_data or kind_in(task.data) == kind

    # -------------------------------------------------------------------------------------- interface for rollouts

    @property
    def num_players(self) -> int:
        return self.num_tasks - self.first

    @property
    def player(self) -> int:
        return max(0, self.chain.at - self.first)

    def said_to(self, player: int) -> Observation:
        return self.chain.played[self.first + player].said

    def parts_of(self, player: int) -> tuple[RewardPart, ...]:
        """Return the sums of a task's own reward parts, and its bonuses; nothing if the task never began."""
        number = self.first + player
        is_begun = number < len(self.chain.played)
        return (*self.chain.played[number].parts, *self.bonuses_of(number)) if is_begun else ()

    def success_of(self, player: int) -> bool:
        """Return True if a player's task succeeded, as the wrapped environment defines it."""
        return self.chain.succeeded(self.first + player)

    def is_success(self) -> bool:
        """Return True if all tasks that the agent played succeeded, as AppWorld's scenario goal completion asks."""
        return all(map(self.success_of, range(self.num_players)))

    def forfeit(self, player: int) -> None:
        self.note(is_over=True)
        self.finish()

    async def aforfeit(self, player: int) -> None:
        """Leave a task whose player cannot continue, and begin the next one."""
        await self._arun(self._leave_task(self.now.said))

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools of the wrapped environment, and the own ones."""
        return (*self.world.tools, *(tool.spec for tool in self.own_tools.values()))

    @property
    def task_type(self) -> str:
        return self.world.task_type

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the wrapped environment's tasks; each is the first of a chain."""
        return self.world.tasks(split)

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Return the wrapped environment's cheats."""
        return self.world.cheats()

    def admissible_actions(self) -> tuple[str, ...]:
        """Return the wrapped environment's possible actions; calls of own tools are not listed."""
        return self.world.admissible_actions()

    def dump_state(self) -> tuple[Chain, Snapshot] | None:
        snapshot = self.world.snapshot()
        return None if snapshot.native is None else (self.chain, snapshot)

    def load_state(self, state: tuple[Chain, Snapshot]) -> None:
        self.chain, snapshot = state
        self.world.restore(snapshot)
        self._limit_turns(self._world_turns)

    def end_episode(self) -> None:
        self.world.end_episode()

    async def aend_episode(self) -> None:
        await self.world.aend_episode()

    def stop(self) -> None:
        self.world.close()

    async def aclose(self) -> None:
        await self.world.aclose()
        self.close()

    # ---------------------------------------------------------------------------------------------------- private

    @property
    def _turns_per_task(self) -> int | None:
        return None if self.max_turns is None else max(1, self.max_turns // self.num_players)

    def _limit_turns(self, own: int | None) -> None:
        """Limit the wrapped environment's turns, since it may grade unfinished work at its limit."""
        limits = [limit for limit in (own, self._turns_per_task) if limit is not None]
        self.world.max_turns = min(limits, default=None)

    def _run(self, work: Work[Result]) -> Result:
        answer: object = None
        while True:
            try:
                ask = work.send(answer)
            except StopIteration as done:
                return cast(Result, done.value)
            if isinstance(ask, Fresh):
                if self.chain.played:
                    self.world.end_episode()
                answer = self.world.reset(seed=ask.seed, options={"task": ask.task})[0]
            else:
                answer = self.world.step(ask)

    async def _arun(self, work: Work[Result]) -> Result:
        answer: object = None
        while True:
            try:
                ask = work.send(answer)
            except StopIteration as done:
                return cast(Result, done.value)
            if isinstance(ask, Fresh):
                if self.chain.played:
                    await self.world.aend_episode()
                answer = (await self.world.areset(seed=ask.seed, options={"task": ask.task}))[0]
            else:
                answer = await self.world.astep(ask)


def _check_world(world: Env, name: str, own: set[str]) -> None:
    """Check that an environment can be wrapped, and close it if not.

    Raises:
        UsageError: it cannot; the message says why.
    """
    names = {spec.name for spec in world.tools}
    several = isinstance(world, AsksAgents) or (isinstance(world, MatchEnv) and world.num_players > 1)
    problem = "has no tools" if not names else "has several players or agents" if several else ""
    if taken := sorted(names & own):
        problem = f"has a tool {taken[0]} of its own"
    if problem:
        world.close()
        raise UsageError(f"a chain needs an environment of one player with tools, as Household-v0; {name} {problem}")


def _tool_message(result: ToolResult) -> Message:
    if not result.images:
        return Message("tool", result.content, result=result)
    return Message("tool", (TextPart(result.content), *result.images), result=replace(result, images=()))
