"""Rubric scaffolds: how many criteria a member sees at a step, which ones, and where they are shown."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from testkit.corridors import Corridor
from testkit.drawing_engine import TASK, DrawingEngine
from testkit.played_groups import hinted

from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.retry import RetryOptions
from agentgym.rollout.strategies.rubric import RubricOptions, checklists, numbers, rubric
from agentgym.types import TrajectoryGroup

CRITERIA = ("open it", "take it", "close it", "go home")


def test_shares_fall_from_member_to_member_and_from_step_to_step() -> None:
    """Golden: K=10 and n=5, so shares 1, 3/4, 1/2, 1/4 and 0; the sigmoid is 0.5 at step 10 and 0.2689 at step 12."""
    options = RubricOptions(steps=10, steepness=0.5)
    assert numbers(10, 5, 10, options) == [5, 4, 2, 1, 0], "5, 3.75, 2.5 (to even), 1.25, 0"
    assert numbers(10, 5, 12, options) == [3, 2, 1, 1, 0], "2.69, 2.02, 1.34, 0.67, 0"
    assert numbers(10, 5, 0, options) == [10, 7, 5, 2, 0], "9.93, 7.45, 4.97, 2.48, 0"
    for step in (0, 3, 10, 25, 10_000):
        left = 1 / (1 + math.exp(min((step - 10) * 0.5, 700)))
        assert numbers(7, 3, step, options) == [round(7 * left), round(3.5 * left), 0]
    assert numbers(10, 1, 10, options) == [5], "a lone member counts as a first one"
    assert rubric(["x"] * 10, 5, 12, options) == (4, 100) and rubric(["x"] * 10, 5, 40, options) == (0, 100)


def test_criteria_are_drawn_and_keep_their_order() -> None:
    options = RubricOptions(steps=100)
    texts = checklists(CRITERIA, 5, 0, options, np.random.default_rng(0))
    lines = [[line.removeprefix("- ") for line in text.splitlines()[1:]] for text in texts]
    assert [len(chosen) for chosen in lines] == [4, 3, 2, 1]
    assert all(chosen == [one for one in CRITERIA if one in chosen] for chosen in lines)
    drawn = {checklists(CRITERIA, 5, 0, options, np.random.default_rng(seed))[-1] for seed in range(40)}
    assert len(drawn) == len(CRITERIA), "any criterion may be the only one"


def test_a_plan_and_its_checklists_agree_and_come_again() -> None:
    config = StrategyConfig(guidance=RubricOptions(steps=4, steepness=1.0))

    def made(step: int, ordinal: int) -> tuple[int, list[str]]:
        planner = EnvPlanner(config, [TASK], 5, 7, criteria=CRITERIA)
        (plan,) = planner.plan(0, [0], step)
        return plan.num_hinted, planner.checklists(ordinal, plan.num_episodes, step)

    found = [made(step, 3) for step in range(10)]
    assert [num for num, _ in found] == [len(texts) for _, texts in found]
    assert found[0][0] == 4 and found[-1] == (0, []), "a new task gets the checklist, and after a while nobody does"
    assert found == [made(step, 3) for step in range(10)] and made(0, 3) != made(0, 4)
    assert EnvPlanner(StrategyConfig(), [TASK], 5, 7, criteria=CRITERIA).checklists(0, 5, 0) == []


def test_members_see_their_own_text_without_an_oracle() -> None:
    engine = DrawingEngine(("move: right", "move: left"))

    async def run() -> TrajectoryGroup:
        player = GroupPlayer(EnvPool(Corridor, 4), engine.agents(), GroupConfig(group_size=4, num_envs=4), seed=1)
        return await player.play(0, TASK, program=hinted(3, ["both", "one"]))

    group = asyncio.run(run())
    assert [[turn.hint for turn in t.turns][:4] for t in group.trajectories[2:]] == [
        ["both"] * 3 + [""],
        ["one"] * 3 + [""],
    ]
    assert all(t.is_unaided for t in group.trajectories[:2])


def test_a_rubric_needs_no_oracle_and_trains_off_policy() -> None:
    config = StrategyConfig(guidance=RubricOptions(text="look"))
    assert not config.needs_oracle and not config.teaches and config.off_policy == "hints"
    with pytest.raises(ConfigError, match=r"remove strategy\.branching"):
        StrategyConfig(guidance=RubricOptions(text="look"), branching=RetryOptions())
