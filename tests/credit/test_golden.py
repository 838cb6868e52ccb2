"""The published numbers: every worked example of GRPO and GiGPO, and properties that must hold on any input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.credit.compose import CreditConfig, assign_credit
from agentgym.credit.estimators.gigpo import gigpo
from agentgym.credit.estimators.grpo import grpo
from agentgym.credit.statistics import returns_to_go
from agentgym.credit.table import Floats, TurnTable
from agentgym.errors import ConfigError
from agentgym.types import Message, RewardPart, Segment, Status, Task, Trajectory, TrajectoryGroup, Turn

REWARDS = [[0.0, 0.0, 10.0], [0.0, 0.0, 0.0], [0.0, 10.0]]
STATES = [["s0", "s1", "s2"], ["s0", "s1", "s1"], ["s0", "s3"]]


def f1(is_valid: list[list[bool]] | None = None) -> TurnTable:
    return TurnTable.from_lists(rewards=REWARDS, states=STATES, is_valid=is_valid, group_of_trajectory=[0, 0, 0])


def assert_close(actual: Floats, expected: list[float]) -> None:
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_returns_are_discounted_within_a_trajectory() -> None:
    assert_close(returns_to_go(f1(), 0.95), [9.025, 9.5, 10, 0, 0, 0, 9.5, 10])


def test_gigpo_mean_norm() -> None:
    expected = [6.6, 10.083333, 3.75, -12.425, -9.416667, -9.416667, 7.075, 3.75]
    assert_close(gigpo(f1(), norm="mean_norm").advantage, expected)


def test_gigpo_mean_norm_over_trajectories() -> None:
    only_episode = gigpo(f1(), norm="mean_norm", statistics_unit="trajectory", step_weight=0.0).advantage
    assert_close(only_episode, [3.333333] * 3 + [-6.666667] * 3 + [3.333333] * 2)


def test_gigpo_mean_std_norm() -> None:
    expected = [1.256983, 1.879269, 0.724569, -2.361178, -1.784965, -1.784965, 1.345718, 0.724569]
    assert_close(gigpo(f1()).advantage, expected)


def test_gigpo_mean_std_norm_over_trajectories() -> None:
    only_episode = gigpo(f1(), statistics_unit="trajectory", step_weight=0.0).advantage
    assert_close(only_episode, [0.577350] * 3 + [-1.154700] * 3 + [0.577350] * 2)


def test_gigpo_invalid_action_penalty_stays_on_its_turn() -> None:
    table = f1([[True] * 3, [True, True, False], [True] * 2])
    expected = [6.6125, 10.129167, 3.7625, -12.4125, -9.370833, -9.570833, 7.0875, 3.7625]
    assert_close(gigpo(table, norm="mean_norm", invalid_penalty=0.1).advantage, expected)


def test_gigpo_reports_anchor_groups() -> None:
    credited = gigpo(f1())
    assert credited.anchor_size is not None
    assert credited.anchor_size.tolist() == [3, 3, 1, 3, 3, 3, 3, 1]


def test_gigpo_single_row_keeps_its_score() -> None:
    table = TurnTable.from_lists(rewards=[[2.0]], states=[["s"]], group_of_trajectory=[0])
    assert gigpo(table, norm="mean_norm").advantage.tolist() == [2.0]
    np.testing.assert_allclose(gigpo(table).advantage, [2.0 / (1 + 1e-6)], rtol=1e-12)


def test_gigpo_over_trajectories_has_the_first_turns_penalty_in_its_statistics() -> None:
    table = TurnTable.from_lists(
        rewards=[[0.0, 1.0], [0.0, 0.0]], is_valid=[[False, True], [True, False]], group_of_trajectory=[0, 0]
    )
    credited = gigpo(table, norm="mean_norm", step_weight=0.0, statistics_unit="trajectory", invalid_penalty=0.1)
    mean = (0.9 + 0.0) / 2
    np.testing.assert_allclose(credited.advantage, [0.9 - mean, 1.0 - mean, 0.0 - mean, -0.1 - mean], atol=1e-12)


def test_states_of_different_groups_never_meet() -> None:
    table = TurnTable.from_lists(rewards=[[1.0], [0.0]], states=[["s"], ["s"]], group_of_trajectory=[0, 1])
    credited = gigpo(table)
    assert credited.anchor_size is not None
    assert credited.anchor_size.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("scores", "norm", "expected"),
    [
        ([1, 0, 0.5, 2], "mean_std_norm", [0.146385, -1.024694, -0.439155, 1.317464]),
        ([1, 0, 0.5, 2], "mean_norm", [0.125, -0.875, -0.375, 1.125]),
        ([1, 0, 0, 1, 1], "mean_std_norm", [0.730295, -1.095443, -1.095443, 0.730295, 0.730295]),
        ([1, 1, 1], "mean_std_norm", [0, 0, 0]),
        ([3], "mean_std_norm", [0]),
    ],
)
def test_grpo(scores: list[float], norm: str, expected: list[float]) -> None:
    table = TurnTable.from_lists(rewards=[[s] for s in scores], group_of_trajectory=[0] * len(scores))
    assert_close(grpo(table, norm=norm).advantage, expected)


def test_grpo_penalty_counts_against_the_whole_trajectory() -> None:
    table = TurnTable.from_lists(
        rewards=[[0, 1], [0, 1]], is_valid=[[False, True], [True, True]], group_of_trajectory=[0, 0]
    )
    assert_close(grpo(table, norm="mean_norm", invalid_penalty=0.2).advantage, [-0.1, -0.1, 0.1, 0.1])


# ------------------------------------------------------------------------------------------------------- properties

reward = st.integers(-3, 3).map(float)
episode = st.lists(st.tuples(reward, st.sampled_from("abc")), min_size=1, max_size=6)
batch = st.lists(st.tuples(st.integers(0, 2), episode), min_size=2, max_size=8)


def table_of(rows: list[tuple[int, list[tuple[float, str]]]], shift: float = 0.0) -> TurnTable:
    return TurnTable.from_lists(
        rewards=[[r + (shift if i == len(turns) - 1 else 0) for i, (r, _) in enumerate(turns)] for _, turns in rows],
        states=[[s for _, s in turns] for _, turns in rows],
        group_of_trajectory=[group for group, _ in rows],
    )


def literal_gigpo(rows: list[tuple[int, list[tuple[float, str]]]], gamma: float) -> list[float]:
    """The formula, word for word, in plain Python."""
    turns: list[tuple[int, str, float, float]] = []
    for group, steps in rows:
        total = sum(r for r, _ in steps)
        for t in range(len(steps)):
            to_go = sum(gamma ** (u - t) * steps[u][0] for u in range(t, len(steps)))
            turns.append((group, steps[t][1], total, to_go))

    def normalised(value: float, values: list[float], alone: float) -> float:
        if len(values) == 1:
            return alone / (1 + 1e-6)
        std = float(np.std(values, ddof=1))
        return 0.0 if std < 1e-6 else (value - float(np.mean(values))) / (std + 1e-6)

    return [
        normalised(total, [x[2] for x in turns if x[0] == group], total)
        + normalised(to_go, [x[3] for x in turns if x[:2] == (group, state)], 0.0)
        for group, state, total, to_go in turns
    ]


@given(batch)
def test_gigpo_agrees_with_the_literal_formula(rows: list[tuple[int, list[tuple[float, str]]]]) -> None:
    np.testing.assert_allclose(gigpo(table_of(rows)).advantage, literal_gigpo(rows, 0.95), atol=1e-6)


@given(batch, st.randoms(use_true_random=False))
def test_order_of_trajectories_does_not_matter(rows: list[tuple[int, list[tuple[float, str]]]], random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    straight, shuffled = table_of(rows), table_of([rows[i] for i in order])
    for estimate in (grpo, gigpo):
        a, b = estimate(straight).advantage, estimate(shuffled).advantage
        for position, original in enumerate(order):
            np.testing.assert_allclose(
                a[straight.trajectory == original], b[shuffled.trajectory == position], atol=1e-9
            )


@given(batch, st.floats(-5, 5))
def test_grpo_ignores_a_constant(rows: list[tuple[int, list[tuple[float, str]]]], shift: float) -> None:
    np.testing.assert_allclose(
        grpo(table_of(rows), norm="mean_norm").advantage,
        grpo(table_of(rows, shift), norm="mean_norm").advantage,
        atol=1e-9,
    )


# ------------------------------------------------------------------------------------------------ over trajectories


def trajectory(rewards: list[float], status: Status = Status.COMPLETED) -> Trajectory:
    turns = tuple(
        Turn(index=i, action=Message("assistant", "a"), reward_parts=(RewardPart("outcome", r),), state_key=f"s{i}")
        for i, r in enumerate(rewards)
    )
    task = Task(id="t", split="train", seed=0)
    return Trajectory(task=task, env_id="e", status=status, segments=(Segment(turns),), seed=0)


def group(*members: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(ordinal=0, task=Task(id="t", split="train", seed=0), trajectories=members)


@pytest.mark.parametrize("estimator", ["grpo", "gigpo"])
def test_what_the_infrastructure_spoilt_moves_nothing(estimator: str) -> None:
    good = [trajectory([0, 1]), trajectory([0, 0]), trajectory([1])]
    config = CreditConfig(estimator=estimator)
    alone = assign_credit([group(*good)], config)[0]
    spoilt = assign_credit([group(good[0], trajectory([0, 0, 0], Status.ENV_ERROR), *good[1:])], config)[0]
    assert spoilt[1] == ()
    assert (spoilt[0], *spoilt[2:]) == alone


def test_a_group_of_one_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="group_size must be at least 2"):
        CreditConfig().check_group_size(1)
