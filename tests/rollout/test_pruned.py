"""Groups whose members pause: who goes on, that they are the same as without a pause, and what is cancelled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from testkit.corridors import Corridor, NativeCorridor
from testkit.drawing_engine import SUMMARISED, TASK, DrawingEngine
from testkit.made_episodes import made_episode, made_turn, surprising
from testkit.worlds import LongCounter

from agentgym.env.env import Env
from agentgym.errors import ConfigError
from agentgym.rollout.context import FULL, ContextConfig
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.program import Planned
from agentgym.rollout.pruned import Prune
from agentgym.rollout.strategies.arrol import ArrolOptions, arrol, promise, scaled
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.history import Visit
from agentgym.rollout.waves import AT_ONCE
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe
from agentgym.types import Latency, Status, Trajectory, TrajectoryGroup


def play_group(
    make_env: Callable[[], Env], prune: Prune | None, context: ContextConfig = FULL, size: int = 6
) -> tuple[TrajectoryGroup, int]:
    """Return a group, and the number of its episodes that were told to a pulse."""
    said = ("add: 1", "add: 2") if make_env is LongCounter else ("move: right", "move: left")
    engine, told = DrawingEngine(said), []

    async def run() -> TrajectoryGroup:
        player = GroupPlayer(
            EnvPool(make_env, 8),
            engine.agents(context, make_env()),
            GroupConfig(group_size=size, num_envs=8),
            seed=1,
            on_episode=lambda request, trajectory: told.append(request.member),
        )
        return await player.play(3, TASK, num_episodes=size, program=AT_ONCE if prune is None else Planned(play=prune))

    return asyncio.run(run()), len(told)


def untimed(one: Trajectory) -> Trajectory:
    segments = tuple(
        replace(segment, turns=tuple(replace(turn, latency=Latency()) for turn in segment.turns))
        for segment in one.segments
    )
    return replace(one, segments=segments)


@pytest.mark.parametrize("context", [FULL, SUMMARISED], ids=lambda context: context.policy)
@pytest.mark.parametrize("make_env", [Corridor, NativeCorridor, LongCounter])
def test_who_goes_on_is_the_episode_without_a_pause(make_env: Callable[[], Env], context: ContextConfig) -> None:
    plain, _ = play_group(make_env, None, context)
    assert all(len(one.turns) > 3 for one in plain.trajectories)
    group, num_told = play_group(make_env, Prune(3, lambda members: [4, 1, 2]), context)
    assert [untimed(one) for one in group.trajectories] == [untimed(plain.trajectories[at]) for at in (1, 2, 4)]
    assert num_told == 3
    assert [(cut.member, cut.reason, cut.num_turns) for cut in group.cut] == [
        (0, "pruned", 3), (3, "pruned", 3), (5, "pruned", 3),
    ]  # fmt: skip
    for cut in group.cut:
        begun = plain.trajectories[cut.member]
        assert cut.seed == begun.seed
        assert cut.num_sampled_tokens == sum(turn.num_sampled_tokens for turn in begun.turns[:3])


def test_who_ends_before_the_pause_stays() -> None:
    plain, _ = play_group(LongCounter, None)
    seen: list[Trajectory] = []

    def none(members: Sequence[Trajectory]) -> list[int]:
        seen.extend(members)
        return []

    pause = sorted(len(one.turns) for one in plain.trajectories)[3]
    group, _ = play_group(LongCounter, Prune(pause, none))
    ended = [one for one in plain.trajectories if len(one.turns) <= pause]
    assert 0 < len(ended) < 6 and [untimed(one) for one in group.trajectories] == [untimed(one) for one in ended]
    assert [one.is_stopped for one in seen] == [len(one.turns) > pause for one in plain.trajectories]


def test_a_failure_after_the_pause_is_a_failure_and_no_pruning() -> None:
    class Breaking(Corridor):
        async def arespond(self, action: Any) -> Any:
            if self.turn == 4:
                raise RuntimeError("broken")
            return await super().arespond(action)

    plain, _ = play_group(Breaking, None)
    group, _ = play_group(Breaking, Prune(3, lambda members: [0, 1]))
    assert [one.status for one in group.trajectories] == [one.status for one in plain.trajectories[:2]]
    assert all(one.status is Status.ENV_ERROR and one.success is None for one in group.trajectories)
    assert [cut.member for cut in group.cut] == [2, 3, 4, 5]


# -------------------------------------------------------------------------------------------------------------- ARRoL


def test_what_an_episode_promises() -> None:
    one = made_episode([made_turn([-1.0, -2.0]), made_turn([-0.3], is_valid=False)])
    assert promise(one) == pytest.approx(2.718281828**-1.1 * 0.5)
    assert promise(made_episode([made_turn([0.0], is_void=True)])) == 0.0
    assert scaled([0.2, 0.4], 0.6) == pytest.approx([0.4, 0.8]) and scaled([0.1, 0.9], 0.8) == [
        0.16000000000000003,
        1.0,
    ]
    assert scaled([0.0, 0.0], 0.3) == [0.3, 0.3] and scaled([], 0.3) == []


def test_arrol_keeps_the_members_that_balance_the_group() -> None:
    """Chances of five running members are 0.2, 0.4, 0.6, 0.8 and 1 times rate / 0.6; four of eight are kept."""
    running = [surprising(math.log(chance)) for chance in (0.6, 0.2, 1.0, 0.4, 0.8)]
    won, lost = surprising(-1.0, success=True), surprising(-1.0)
    options = ArrolOptions()
    assert arrol([], running, 0.6, 8, options) == [0, 1, 3, 4], "the mean of 0.2, 0.4, 0.6 and 0.8 is a half"
    assert arrol([won], running, 0.6, 8, options) == [0, 1, 3], "a success and 0.2, 0.4 and 0.6 make 2.2 of 4"
    assert arrol([won, won], running, 0.6, 8, options) == [1, 3], "two successes go with the least likely two"
    assert arrol([lost, lost], running, 0.6, 8, options) == [2, 4], "two failures with the likeliest two"
    assert arrol([won] * 4, running, 0.6, 8, options) == [], "the group is as large as it shall be"
    assert arrol([], running, None, 8, ArrolOptions(keep=0.9)) == [0, 1, 2, 3, 4]
    assert arrol([], running, 0.6, 8, ArrolOptions(target=1.0)) == [0, 2, 3, 4]
    assert arrol([], running, 0.6, 8, ArrolOptions(target=0.0)) == [0, 1, 3, 4]


def test_a_planner_prunes_by_the_success_of_the_task() -> None:
    planner = EnvPlanner(StrategyConfig(pruning=ArrolOptions(after=3)), [TASK], 4, 7)
    assert EnvPlanner(StrategyConfig(), [TASK], 4, 7).prune(0) is None
    running = [replace(surprising(-0.1 * at), status=Status.ABORTED, is_stopped=True) for at in range(1, 4)]
    failed = surprising(-1.0, status=Status.ENV_ERROR)
    before = planner.prune(0)
    assert before is not None and before.num_turns == 3
    planner.history.add(0, Visit(step=0, num_episodes=8, num_successes=1))
    after = planner.prune(0)
    assert after is not None
    assert before.going_on([failed, *running]) == [1, 3], "without a history a half is expected"
    assert after.going_on([failed, *running]) == [1, 2], "the likeliest two of a hard task"
    assert len(after.going_on(running * 4)) == 6, "half of a group that a budget made larger"


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (('strategy.branching={"kind": "arpo"}',), "arrol and arpo both decide"),
        (('strategy.guidance={"kind": "fading"}',), "arrol and fading both decide"),
        (("pipeline.over_provision=1",), "over_provision at 0"),
        (("group.group_size=2",), "leaves 1 of 2 episodes"),
        (('strategy.budget={"kind": "knapsack", "low": 2}',), "leaves 1 of 2 episodes"),
    ],
)
def test_what_cannot_be_is_refused(overrides: tuple[str, ...], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        apply_overrides(load_recipe("household-smoke"), ('strategy.pruning={"kind": "arrol"}', *overrides))
