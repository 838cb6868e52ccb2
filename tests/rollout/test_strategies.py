"""Rollout strategies: the numbers of their papers, the plans they make, and the same plans after a restart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from agentgym.env.tasks import SeededTasks
from agentgym.errors import ConfigError
from agentgym.rollout.mixture import Mixture
from agentgym.rollout.plan import EnvPlanner, GroupPlanner, PlanState, TaskSchedule
from agentgym.rollout.strategies.component import strategy_table
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.history import TaskHistory, Visit
from agentgym.rollout.strategies.knapsack import DarsOptions, KnapsackOptions, dars, knapsack, value
from agentgym.rollout.strategies.scaling_inter import ScalingInterOptions, scaling_inter
from agentgym.rollout.strategies.vade import VadeOptions, posterior, vade
from agentgym.types import Status, Trajectory, TrajectoryGroup

TASKS = SeededTasks("train", 20)


def group(ordinal: int, results: Sequence[bool | None]) -> TrajectoryGroup:
    """A group of episodes with these results; None is one that failed."""
    made = Trajectory(task=TASKS[0], env_id="x", status=Status.COMPLETED, segments=(), seed=0)
    members = tuple(
        replace(made, success=result) if result is not None else replace(made, status=Status.ENV_ERROR)
        for result in results
    )
    return TrajectoryGroup(ordinal=ordinal, task=TASKS[0], trajectories=members)


def planner(config: StrategyConfig, state: PlanState | None = None, groups_per_step: int = 4) -> GroupPlanner:
    def mixture(saved: object) -> Mixture:
        return Mixture(lambda step: (1.0,), groups_per_step=groups_per_step, state=saved)  # type: ignore[arg-type]

    return GroupPlanner(mixture, [EnvPlanner(config, TASKS, 8, 7)], groups_per_step, state)


def test_the_defaults_play_every_task_once_in_the_runs_order() -> None:
    plans = [planner(StrategyConfig()).plan(ordinal) for ordinal in range(40)]
    schedule = TaskSchedule(TASKS, 7)
    assert [TASKS[plan.task] for plan in plans] == [schedule.task(ordinal) for ordinal in range(40)]
    assert {(plan.num_episodes, plan.max_turns) for plan in plans} == {(8, None)}


def test_knapsack_golden_numbers() -> None:
    sizes = knapsack([0.1, 0.5, 0.9], 8, KnapsackOptions(low=2))
    assert sizes == [15, 7, 2]
    assert sum(map(value, sizes, [0.1, 0.5, 0.9])) == pytest.approx(0.188990, abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_knapsack_is_the_best_allocation(seed: int) -> None:
    draw = random.Random(seed)
    rates = [draw.choice([0.1, 0.25, 0.5, 0.75, 0.875]) for _ in range(3)]
    sizes = knapsack(rates, 4, KnapsackOptions(low=1, high=12))
    assert sum(sizes) == 12 and min(sizes) >= 1
    every = [(a, b, 12 - a - b) for a in range(1, 11) for b in range(1, 12 - a)]
    best = max(sum(map(value, split, rates)) for split in every)
    assert sum(map(value, sizes, rates)) == pytest.approx(best, abs=1e-12)


def test_knapsack_at_its_bounds() -> None:
    options = KnapsackOptions(low=2, high=16)
    assert knapsack([None, None], 8, options) == [8, 8]
    assert knapsack([None, 1.0, 0.5], 8, options) == [8, 2, 14]
    assert knapsack([0.0, 1.0, 1.0], 8, options) == [16, 2, 2], "the rest goes to what always failed, up to the bound"
    assert knapsack([1.0, 1.0], 8, options) == [8, 8], "where nothing can be gained, groups stay even"
    assert knapsack([], 8, options) == []


def test_dars_golden_numbers() -> None:
    assert [dars(rate, 8, DarsOptions()) for rate in (0.25, 0.125, 0.0, 0.5, 1.0)] == [2, 5, 24, 0, 0]
    assert dars(0.125, 8, DarsOptions(schedule="hardness")) == 22 - 8
    assert dars(0.125, 8, DarsOptions(high=10)) == 2


def test_scaling_inter_stages() -> None:
    of_release = [(10, 20, 30)[min(step // 100, 2)] for step in range(1, 401)]
    assert [scaling_inter(step, (10, 20, 30), 100) for step in range(400)] == of_release


def test_vade_posterior() -> None:
    once = posterior([Visit(0, 8, 3)], 0, VadeOptions(decay=1.0))
    assert once == pytest.approx((0.9 + 3, 0.9 + 5))
    # the worked example: (3, 5) with k=3 of 8 becomes (5.7, 9.5)
    before = [Visit(0, 6, 2)]
    options = VadeOptions(decay=1.0, decay_visited=1.0)
    assert posterior(before, 0, options) == (3.0, 5.0)
    decayed = posterior([*before, Visit(0, 8, 3)], 0, VadeOptions(decay=1.0, decay_visited=0.9))
    assert decayed == pytest.approx((0.9 * (0.9 + 2) + 3, 0.9 * (0.9 + 4) + 5))
    faded = posterior([Visit(0, 8, 3)], 1000, VadeOptions())
    assert faded == pytest.approx((1.0, 1.0), abs=1e-3)


def test_vade_prefers_what_is_sometimes_solved() -> None:
    history = TaskHistory()
    for task in range(20):
        history.add(task, Visit(0, 200, {3: 100, 5: 110}.get(task, 0)))
    options = VadeOptions(decay=1.0, decay_visited=1.0)
    chosen = [
        task
        for step in range(30)
        for task in vade(20, range(2), lambda position: position, history, step, np.random.default_rng(step), options)
    ]
    assert set(chosen) == {3, 5}


def test_vade_plays_a_small_pool_several_times_over() -> None:
    options = VadeOptions(pool=2)
    chosen = vade(20, range(6), lambda position: position, TaskHistory(), 0, np.random.default_rng(0), options)
    assert sorted(chosen) == [0, 0, 0, 1, 1, 1]


def test_failed_episodes_are_no_evidence() -> None:
    made = planner(StrategyConfig(budget=KnapsackOptions()))
    plans = [made.plan(ordinal) for ordinal in range(4)]
    made.observe(0, [group(0, [True, None, None, False]), group(1, [None] * 4), group(2, [True]), group(3, [False])])
    (history,) = made.state.history
    assert history == {plans[0].task: [(0, 2, 1)], plans[2].task: [(0, 1, 1)], plans[3].task: [(0, 1, 0)]}


@pytest.mark.parametrize(
    "config",
    [
        StrategyConfig(),
        StrategyConfig(tasks=VadeOptions(pool=10)),
        StrategyConfig(budget=KnapsackOptions()),
        StrategyConfig(horizon=ScalingInterOptions(rounds=(2, 4), steps=3)),
        StrategyConfig(tasks=VadeOptions(), budget=KnapsackOptions(), horizon=ScalingInterOptions(steps=2)),
    ],
    ids=["defaults", "vade", "knapsack", "scaling_inter", "all"],
)
def test_a_resumed_run_plans_what_the_first_would_have(config: StrategyConfig) -> None:
    def step(made: GroupPlanner, number: int) -> list[object]:
        plans = [made.plan(ordinal) for ordinal in range(4 * number, 4 * number + 4)]
        draw = random.Random(number)
        results = [[draw.random() < 0.4 for _ in range(plan.num_episodes)] for plan in plans]
        made.observe(number, [group(4 * number + at, own) for at, own in enumerate(results)])
        return [*plans]

    whole = planner(config)
    expected = [step(whole, number) for number in range(8)]
    again = planner(config)
    found = []
    for number in range(8):
        found.append(step(again, number))
        again = planner(config, PlanState.from_dict(again.state.to_dict()))
    assert found == expected


def test_groups_that_were_planned_ahead_are_planned_alike_after_a_restart() -> None:
    made = planner(StrategyConfig(tasks=VadeOptions()))
    ahead = [made.plan(ordinal) for ordinal in range(8)]
    made.observe(0, [group(ordinal, [True, False]) for ordinal in (0, 1, 2, 5)])
    again = planner(StrategyConfig(tasks=VadeOptions()), PlanState.from_dict(made.state.to_dict()))
    assert [again.plan(ordinal) for ordinal in (3, 4, 6, 7)] == [ahead[at] for at in (3, 4, 6, 7)]


def test_every_strategy_says_where_it_is_from() -> None:
    table = strategy_table()
    assert {component.name for component in table} >= {"order", "vade", "even", "knapsack", "dars", "scaling_inter"}
    assert all(component.paper and component.status != "user" and component.options for component in table)


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="low"):
        KnapsackOptions(low=4, high=2)
    with pytest.raises(ConfigError, match="all rounds are equal"):
        StrategyConfig(horizon=ScalingInterOptions(rounds=(5,)))
    with pytest.raises(ConfigError, match="decay"):
        VadeOptions(decay=0.0)
