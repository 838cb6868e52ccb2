"""A trial of a user's program on made-up episodes, before a run warms up and plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from agentgym.env.env import Env
from agentgym.env.tasks import SeededTasks
from agentgym.env.tool_env import ToolEnv
from agentgym.env.worker_thread import run_coroutine
from agentgym.errors import ConfigError
from agentgym.rollout.agent import Decision
from agentgym.rollout.branch import ForcedTokens
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.program import Facts, Planned, played_by
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.history import Visit
from agentgym.tool import tool
from agentgym.types import (
    Completion,
    FinishReason,
    Latency,
    Message,
    Observation,
    Task,
    ToolSpec,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

PATIENCE_S = 60.0
"""Seconds that a program may take for a made-up group, whose episodes take milliseconds."""
_MOST_TURNS = 40


class Walk(ToolEnv):
    """A walk to one of two ends: an environment of trials, in which some episodes succeed."""

    max_turns = _MOST_TURNS
    goals = (True, False)
    """Success at the right end, and at the left one."""
    fails = False
    """True if the infrastructure fails where a walk passes the third place to the left."""

    def tasks(self, split: str) -> Sequence[Task]:
        return SeededTasks(split, 1)

    def start(self, task: Task) -> str:
        self.place = 0
        return "You stand in the middle."

    @tool
    def move(self, direction: Literal["left", "right"]) -> str:
        """Take a step.

        Args:
            direction: where to.
        """
        self.place += 1 if direction == "right" else -1
        if self.fails and self.place == -3:
            raise RuntimeError("the trial's environment fails here")
        if abs(self.place) == 4:
            self.finish(float(self.goals[self.place < 0]))
        return f"You are at {self.place}."

    def state_key(self) -> str:
        return str(self.place)

    def oracle(self) -> Message:
        return self.parse_action("move: right")


class _AlwaysWon(Walk):
    goals = (True, True)


class _AlwaysLost(Walk):
    goals = (False, False)


class _SometimesFails(Walk):
    fails = True


class _Walker:
    """An agent of the trial: its actions and made-up tokens depend on its seed and the number of its turns."""

    def __init__(self, env: Env, seed: int, *, knows: bool = False) -> None:
        self._env, self._seed, self._knows = env, seed, knows
        self._num_turns, self._hint, self._given = 0, "", 0

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        """Do nothing: the walk does not depend on what is said."""

    async def decide(self) -> Decision:
        """Return a step in a direction that is drawn."""
        drawn = derive_seed(self._seed, self._num_turns)
        self._num_turns += 1
        way = "right" if self._knows or self._hint or drawn % 2 else "left"
        num = max(2 + drawn % 3, self._given + 1)
        completion = Completion(
            token_ids=tuple(1 + (drawn >> at) % 97 for at in range(num)),
            logprobs=tuple(-0.01 * (1 + (drawn >> at) % 97) for at in range(num)),
            policy_versions=(0,) * num,
            finish_reason=FinishReason.STOP,
        )
        action = self._env.parse_action(f"move: {way}")
        made = Turn(action=action, prompt_ids=(1, 2), completion=completion, hint=self._hint)
        made = replace(made, num_copied_tokens=self._given)
        self._hint, self._given = "", 0
        return Decision(made, begins_segment=self._num_turns == 1)

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        """Do nothing."""

    def repeat(self, turn: Turn) -> None:
        """Count a turn of another episode."""
        self._num_turns += 1

    def show(self, action: Message) -> None:
        """Follow a hint in the next turn."""
        self._hint = action.text or "hint"

    def give(self, given: ForcedTokens) -> None:
        """Begin the next turn with some tokens, of which only the number counts."""
        self._given = given.num_tokens

    async def end(self) -> None:
        """Do nothing."""


WORLDS = (Walk, _AlwaysWon, _AlwaysLost, _SometimesFails)
_FACTS = (Facts(), Facts(step=5, visits=(Visit(1, 8, 4), Visit(3, 8, 8))))


def try_program(config: StrategyConfig, group: GroupConfig) -> None:
    """Run a user's program on made-up groups, so that its errors show before training starts.

    In each of four small worlds it plays a group twice: once with all episodes at the same time, once with one at a
    time. Both must be equal.

    Raises:
        ConfigError: the program raises, finishes too few episodes, uses means that it has not declared, plays outside
            its group, or depends on more than its arguments.
    """
    component = config.rule("program")
    if not config.runs_program or not component.is_own:
        return
    name = f"program {component.name!r}"
    play, most = played_by(component, config.program), 0
    for at, make_env in enumerate(WORLDS):
        planned = Planned(play=play, facts=_FACTS[at % 2], rng_seed=at, name=name, uses=config.uses)
        groups = [
            run_coroutine(played(planned, make_env, group.group_size, num_envs)) for num_envs in (group.group_size, 1)
        ]
        first, second = map(_described, groups)
        if first != second:
            raise ConfigError(
                f"{name} played the same group in two ways: it may depend on its arguments and group.rng, but not "
                "on which episode is faster"
            )
        most = max(most, sum(one.status.is_evidence for one in groups[0].trajectories))
    if most < group.min_valid:
        raise ConfigError(
            f"{name} finished {most} of {group.group_size} episodes of a trial, and a group needs group.min_valid="
            f"{group.min_valid}"
        )


async def played(planned: Planned, make_env: Callable[[], Env], size: int, num_envs: int) -> TrajectoryGroup:
    """Return a group that a program has played in a made-up world.

    Raises:
        ConfigError: the program fails, or does not end.
    """
    player = GroupPlayer(
        EnvPool(make_env, num_envs),
        _Walker,
        GroupConfig(group_size=size, min_valid=1, num_envs=num_envs, max_retries=0),
        seed=0,
        demonstrator=lambda env, seed: _Walker(env, seed, knows=True),
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await player.play(0, Task(id="trial", split="train", seed=0), program=planned)
    except TimeoutError as error:
        raise ConfigError(f"{planned.name} did not end within {PATIENCE_S:g} s of a trial") from error


def _described(group: TrajectoryGroup) -> list[object]:
    """Return what must be equal when a group is played again."""

    def untimed(one: Trajectory) -> Trajectory:
        turns = [
            replace(segment, turns=tuple(replace(turn, latency=Latency()) for turn in segment.turns))
            for segment in one.segments
        ]
        return replace(one, segments=tuple(turns))

    return [*(untimed(one) for one in group.trajectories), *group.cut]
