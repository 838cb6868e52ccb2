"""Rollout strategies: the numbers of their papers, the plans they make, and the same plans after a restart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest

from agentgym.env.tasks import SeededTasks
from agentgym.errors import ConfigError
from agentgym.plugins import Options
from agentgym.rollout.mixture import Mixture
from agentgym.rollout.plan import EnvPlanner, GroupPlanner, PlanState, TaskSchedule
from agentgym.rollout.replay import BEFORE_RL, RecordRef, Replayed, Swap
from agentgym.rollout.strategies.component import strategy_table
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.dart import LongestSuccessOptions, ShrinkingOptions, shrinking
from agentgym.rollout.strategies.dots import DotsOptions
from agentgym.rollout.strategies.extending import ExtendingOptions, extending, was_cut_short
from agentgym.rollout.strategies.history import TaskHistory, Visit
from agentgym.rollout.strategies.knapsack import DarsOptions, KnapsackOptions, dars, knapsack, value
from agentgym.rollout.strategies.remix import RemixOptions
from agentgym.rollout.strategies.scaling_inter import ScalingInterOptions, scaling_inter
from agentgym.rollout.strategies.spear import SpearOptions, spear, warm_up
from agentgym.rollout.strategies.spo import SpoSourceOptions
from agentgym.rollout.strategies.start_samples import StartSamplesOptions
from agentgym.rollout.strategies.success import SuccessOptions
from agentgym.rollout.strategies.vade import VadeOptions, posterior, vade
from agentgym.rollout.strategies.vas import VasOptions
from agentgym.rollout.strategies.xrpo import XrpoOptions, quantile, xrpo
from agentgym.settings import checked
from agentgym.types import Message, RewardPart, Segment, Status, Trajectory, TrajectoryGroup, Turn

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


def test_groups_shrink_as_their_task_is_learnt() -> None:
    assert shrinking([None, 0.0, 0.6, 0.7, 0.9, 1.0], 8, ShrinkingOptions()) == [8, 8, 8, 7, 4, 2]
    assert shrinking([0.5, 1.0], 4, ShrinkingOptions(above=0.0, low=1)) == [3, 1]
    assert shrinking([1.0], 4, ShrinkingOptions(low=9)) == [4], "no group grows"


def test_a_task_is_played_for_as_long_as_its_longest_success() -> None:
    tasks = StrategyConfig(tasks=VadeOptions(pool=1), horizon=LongestSuccessOptions(margin=1))
    made = planner(tasks, groups_per_step=1)
    assert made.plan(0).max_turns is None
    members = (cut("a", "b"), cut("a", "b", "c", success=True), cut("a", "b", success=True), cut("a", "b", "c", "d"))
    made.observe(0, [replace(group(0, [True]), trajectories=members)])
    again = planner(tasks, checked(PlanState, asdict(made.state)), groups_per_step=1)
    assert made.plan(1).max_turns == again.plan(1).max_turns == 4, "three turns, and one more"
    made.observe(1, [replace(group(1, [True]), trajectories=(cut("a", success=True),))])
    assert made.plan(2).max_turns == 4, "the longest of all visits"


def test_a_pool_from_before_the_run_is_replayed() -> None:
    pool = {3: [RecordRef(BEFORE_RL, 7, 1)]}
    made = EnvPlanner(StrategyConfig(replay=SuccessOptions(probed=True), probe=2), TASKS, 4, seed=0, pool=pool)
    assert made.swap(group(0, [False] * 4), 3, 0) == Swap(0, 3, RecordRef(BEFORE_RL, 7, 1))
    assert made.swap(group(0, [False] * 4), 2, 0) is None and made.swap(group(0, [True, False]), 3, 0) is None
    with pytest.raises(ConfigError, match=r"stores what strategy\.probe plays"):
        StrategyConfig(replay=SuccessOptions(probed=True))


def test_scaling_inter_stages() -> None:
    of_release = [(10, 20, 30)[min(step // 100, 2)] for step in range(1, 401)]
    assert [scaling_inter(step, (10, 20, 30), 100) for step in range(400)] == of_release


def test_xrpo_golden_numbers() -> None:
    # h(n) - h(n + 1) at a deviation of 1/2 from n = 2 on: 3.250, 0.446, 0.175, 0.096. The bonus 0.5 sqrt(log T / n) of
    # the group that always fails: 0.416, 0.449, 0.473, 0.493; of the other in the end 0.312. So the last episode goes
    # to the group that always fails.
    assert xrpo([0.5, 0.0], 4, XrpoOptions(bonus=0.5)) == [5, 3]
    assert xrpo([0.5, 0.0], 4, XrpoOptions(bonus=0.0)) == [6, 2]
    assert quantile(2) == pytest.approx(4.302653) and quantile(20) == pytest.approx(2.085963, abs=1e-5)
    assert quantile(7) == pytest.approx(2.364624, abs=1e-4) and quantile(120) == pytest.approx(1.979930, abs=1e-5)


def test_xrpo_at_its_bounds() -> None:
    assert xrpo([None, None, None], 8, XrpoOptions()) == [8, 8, 8], "nothing tells tasks that were never played apart"
    assert xrpo([0.5, 1.0, 1.0], 8, XrpoOptions(high=10)) == [10, 7, 7]
    assert xrpo([0.5, 1.0], 8, XrpoOptions(high=7)) == [7, 7], "what no group may take is not played"
    assert xrpo([], 8, XrpoOptions()) == []
    sizes = xrpo([0.05, 0.2, 0.5, 0.9, 1.0], 8, XrpoOptions())
    assert sum(sizes) == 40 and min(sizes) >= 2 and sizes[2] == max(sizes) and sizes[4] == min(sizes)


def cut(
    *states: str, reward: float = 0.0, status: Status = Status.TRUNCATED_TURNS, success: bool = False
) -> Trajectory:
    """An episode that went through these states, and was rewarded in its first turn."""
    turns = tuple(
        Turn(
            index=at,
            action=Message("assistant", "go"),
            state_key=state,
            reward_parts=(RewardPart("step", reward),) if not at else (),
        )
        for at, state in enumerate(states)
    )
    return Trajectory(
        task=TASKS[0], env_id="x", status=status, segments=(Segment(turns=turns),), seed=0, success=success
    )


def test_an_episode_was_cut_short_if_it_was_getting_somewhere() -> None:
    assert was_cut_short(cut("a", "b", "c"))
    assert not was_cut_short(cut("a", "b", "a")), "it ran in a circle"
    assert was_cut_short(cut("a", "b", "a", reward=0.5))
    assert not was_cut_short(cut("a", "b", "c", status=Status.COMPLETED))
    assert not was_cut_short(cut("a", "b", "c", success=True))
    assert not was_cut_short(cut())


def test_a_task_gets_more_turns_where_the_limit_cuts_progress_short() -> None:
    options = ExtendingOptions(start=3, more=2, most=6, share=0.5)
    made = EnvPlanner(StrategyConfig(horizon=options), TASKS, 4, 7)
    position = 5
    task = made.plan(0, [position], 0)[0].task

    def limit_after(step: int, *episodes: Trajectory) -> int | None:
        made.note(TrajectoryGroup(ordinal=step, task=TASKS[task], trajectories=episodes), task, step)
        return made.plan(0, [position], step)[0].max_turns

    circle, progress = cut("a", "b", "a"), cut("a", "b", "c")
    assert made.plan(0, [position], 0)[0].max_turns == 3
    assert limit_after(0, circle, circle, progress, circle) == 3, "one of four is below the share"
    assert limit_after(1, circle, progress, progress, circle) == 5
    assert limit_after(2, *[cut("a", status=Status.COMPLETED, success=True)] * 4) == 5
    assert limit_after(3, progress, progress) == 6, "the most"
    assert {plan.max_turns for plan in made.plan(0, range(20), 4)} == {3, 6}, "other tasks keep their limit"
    assert made.history.to_dict()[task] == [(0, 4, 0, 1), (1, 4, 0, 2), (2, 4, 4, 0, 1), (3, 2, 0, 2)]
    assert TaskHistory.from_dict(made.history.to_dict()).visits(task) == made.history.visits(task)
    assert extending(made.history.visits(task), replace(options, share=0.2)) == 6


def test_the_limit_of_turns_is_a_metric_where_a_horizon_sets_one() -> None:
    made = planner(StrategyConfig(horizon=ExtendingOptions(start=3, more=2, most=6)))
    for ordinal in range(4):
        made.plan(ordinal)
    made.observe(0, [group(ordinal, [False]) for ordinal in range(4)])
    assert made.metrics() == {"num_tasks_played": 4.0, "turn_limit": 3.0}
    plain = planner(StrategyConfig())
    plain.plan(0)
    plain.observe(0, [group(0, [False])])
    assert plain.metrics() == {"num_tasks_played": 1.0}


def test_spear_replays_by_its_warm_up_and_the_median() -> None:
    # the worked example, S = 200
    assert [warm_up(step, 200) for step in (0, 50, 100, 200, 900)] == pytest.approx([0, 0.146447, 0.5, 1, 1], abs=1e-6)
    assert warm_up(0, 0) == 1.0
    options = SpearOptions(max_age=5, warmup_steps=200)

    def share(baseline: float, step: int, ages: Sequence[int] = (9, 5, 1)) -> float:
        rng = np.random.default_rng(0)
        found = [spear([True, False, None, False], ages, baseline, step, rng, options) for _ in range(4000)]
        swaps = [swap for swap in found if swap is not None]
        assert {member for member, _ in swaps} <= {1, 3} and {stored for _, stored in swaps} <= {1, 2}
        return len(swaps) / 4000

    assert share(0.0, 200) == 1.0
    assert share(0.25, 200) == pytest.approx(0.75, abs=0.03)
    assert share(0.25, 100) == pytest.approx(0.375, abs=0.03)
    assert share(1.0, 200) == share(0.0, 0) == share(0.0, 200, ages=(6, 7, 80)) == 0.0
    assert spear([True, None], (1,), 0.0, 200, np.random.default_rng(0), options) is None, "nothing failed"


def test_spears_median_is_that_of_the_steps_before() -> None:
    made = EnvPlanner(StrategyConfig(replay=SpearOptions(warmup_steps=0, window=2)), TASKS, 4, 7)
    won, lost = [True, True, True, False], [True, False, False, False]

    def swapped(step: int, results: Sequence[bool], of: int = 0) -> bool:
        own = group(10 * step + of, results)
        swap = made.swap(own, 0, step)
        made.store(own, 0, step)
        made.note(own, 0, step)
        return swap is not None

    assert not swapped(0, [True] * 4), "nothing is stored"
    assert not swapped(1, won) and not swapped(1, lost, of=1), "all of the step before succeeded"
    assert made.history.median_rate(1) == 0.5
    found = [made.swap(group(20 + at, lost), 0, 2) is not None for at in range(400)]
    assert sum(found) / 400 == pytest.approx(1 - 0.75, abs=0.06), "the median of 1, 3/4 and 1/4"


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
        StrategyConfig(tasks=SpoSourceOptions(pool=10)),
        StrategyConfig(tasks=DotsOptions(pool=10)),
        StrategyConfig(tasks=VasOptions()),
        StrategyConfig(budget=KnapsackOptions()),
        StrategyConfig(budget=XrpoOptions()),
        StrategyConfig(horizon=ExtendingOptions(start=2, most=4, more=1)),
        StrategyConfig(replay=SpearOptions(warmup_steps=3)),
        StrategyConfig(replay=RemixOptions()),
        StrategyConfig(replay=StartSamplesOptions(steps=2)),
        StrategyConfig(horizon=LongestSuccessOptions(), budget=ShrinkingOptions(above=0.2)),
        StrategyConfig(horizon=ScalingInterOptions(rounds=(2, 4), steps=3)),
        StrategyConfig(tasks=VadeOptions(), budget=KnapsackOptions(), horizon=ScalingInterOptions(steps=2)),
    ],
    ids=[
        "defaults",
        "vade",
        "spo",
        "dots",
        "vas",
        "knapsack",
        "xrpo",
        "extending",
        "spear",
        "remix",
        "start_samples",
        "dart",
        "scaling",
        "all",
    ],
)
def test_a_resumed_run_plans_what_the_first_would_have(config: StrategyConfig) -> None:
    def step(made: GroupPlanner, number: int) -> list[object]:
        plans = [made.plan(ordinal) for ordinal in range(4 * number, 4 * number + 4)]
        draw = random.Random(number)
        results = [[draw.random() < 0.4 for _ in range(plan.num_episodes)] for plan in plans]
        groups = [group(4 * number + at, own) for at, own in enumerate(results)]
        members = [[*own.trajectories, cut("a", "b"), cut("a", "a")] for own in groups]
        groups = [replace(own, trajectories=tuple(of)) for own, of in zip(groups, members, strict=True)]
        return [*plans, made.observe(number, groups)]

    whole = planner(config)
    expected = [step(whole, number) for number in range(8)]
    again = planner(config)
    found = []
    for number in range(8):
        found.append(step(again, number))
        again = planner(config, checked(PlanState, asdict(again.state)))
    assert found == expected


def test_groups_that_were_planned_ahead_are_planned_alike_after_a_restart() -> None:
    made = planner(StrategyConfig(tasks=VadeOptions()))
    ahead = [made.plan(ordinal) for ordinal in range(8)]
    made.observe(0, [group(ordinal, [True, False]) for ordinal in (0, 1, 2, 5)])
    again = planner(StrategyConfig(tasks=VadeOptions()), checked(PlanState, asdict(made.state)))
    assert [again.plan(ordinal) for ordinal in (3, 4, 6, 7)] == [ahead[at] for at in (3, 4, 6, 7)]


@pytest.mark.parametrize("replay", [SuccessOptions(), SpearOptions(warmup_steps=0)], ids=["success", "spear"])
def test_a_task_that_comes_twice_in_a_step_is_not_trained_again_in_it(replay: Options) -> None:
    made = planner(StrategyConfig(tasks=VadeOptions(pool=1), replay=replay), groups_per_step=2)
    assert [made.plan(ordinal).task for ordinal in range(4)] == [made.plan(0).task] * 4
    again = made.observe(0, [group(0, [True, False]), group(1, [False, False])])
    assert again == Replayed(), "the record is not written yet"
    swaps = made.observe(1, [group(2, [False, False]), group(3, [False, False])]).swaps
    assert swaps and {swap.stored for swap in swaps} == {RecordRef(0, 0, 0)}


def test_every_strategy_says_where_it_is_from() -> None:
    table = strategy_table()
    names = {component.name for component in table}
    assert names >= {"order", "vade", "spo", "dots", "vas", "even", "knapsack", "dars", "xrpo", "spear"}
    assert names >= {"scaling_inter", "extending"}
    assert all(component.paper and component.status != "user" for component in table)
    plain = {component.name for component in table if component.options is None}
    assert plain == {"order", "even", "fixed", "at_once", "to_the_end", "unaided", "fresh", "rules"}, (
        "they have no settings"
    )


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="low"):
        KnapsackOptions(low=4, high=2)
    with pytest.raises(ConfigError, match="all rounds are equal"):
        StrategyConfig(horizon=ScalingInterOptions(rounds=(5,)))
    with pytest.raises(ConfigError, match="decay"):
        VadeOptions(decay=0.0)
    with pytest.raises(ConfigError, match="xrpo: low must be at least 2"):
        XrpoOptions(low=1)
    with pytest.raises(ConfigError, match="xrpo: needs low <= high"):
        XrpoOptions(low=8, high=4)
    with pytest.raises(ConfigError, match="extending: needs start < most"):
        ExtendingOptions(start=30)
