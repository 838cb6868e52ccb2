"""Situations that users of other trainers reported, with inputs of our own (docs/field-log.md)."""

from __future__ import annotations

import numpy as np
import pytest
from testkit.credit_tables import assert_close, bandits, table_of

from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.estimators.group_relative import dr_grpo, mc_grpo, rloo
from agentgym.credit.estimators.grpo import grpo
from agentgym.credit.estimators.multi_reward import gdpo
from agentgym.credit.selections.filters import OverlongMaskOptions
from agentgym.credit.shapers.penalties import OverlongOptions, overlong_penalty
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError


def test_an_id_per_trajectory_is_no_group() -> None:
    rows = {"trajectory": ["a", "b", "c"], "turn": [0, 0, 0], "reward": [1.0, 0.0, 0.0]}
    alone = TurnTable.from_rows(group=["a", "b", "c"], **rows)
    together = TurnTable.from_rows(group=["t", "t", "t"], **rows)
    assert grpo(alone).advantage.tolist() == [0, 0, 0]
    assert_close(grpo(together).advantage.mean(), 0)
    assert grpo(together).advantage[0] > 0


def test_uneven_groups_keep_their_own_means() -> None:
    assert_close(dr_grpo(bandits(1, 3, 5, groups=[0, 0, 1])).advantage, [-1, 1, 0])
    interleaved = dr_grpo(bandits(1, 10, 3, 20, groups=[0, 1, 0, 1])).advantage
    assert_close(interleaved, [-1, -5, 1, 5])


def test_a_long_trajectory_counts_once_in_the_baseline() -> None:
    short, long = table_of([[1.0], [0.0]]), table_of([[1.0], [0.0] * 9])
    assert_close(dr_grpo(long).advantage[[0, 1]], dr_grpo(short).advantage)


def test_rounding_is_no_deviation() -> None:
    table = bandits(*[0.35] * 7, 0.95)
    assert np.abs(rloo(table).advantage).max() < 1
    assert np.abs(grpo(table).advantage).max() < 3
    assert np.abs(mc_grpo(table).advantage).max() < 8.5
    assert not grpo(bandits(*[0.1 + 0.2] * 4, *[0.3] * 4)).advantage.round(3).any()


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_poisons_no_group(reward: float) -> None:
    with pytest.raises(ConfigError, match=r"rewards\[1\]\[0\] is (nan|inf), expected a finite number"):
        bandits(1, reward, 0)


def test_a_selection_says_whose_statistics_it_takes() -> None:
    table = bandits(1, 0, 0, is_truncated=[False, False, True])
    kept = CreditConfig(estimator="dr_grpo", selections=(OverlongMaskOptions(statistics="kept"),))
    full = CreditConfig(estimator="dr_grpo", selections=(OverlongMaskOptions(),))
    assert_close(credit_turns(table, kept).advantage, [0.5, -0.5, 0])
    assert_close(credit_turns(table, full).advantage[:2], [2 / 3, -1 / 3])
    assert credit_turns(table, full).statistics == {"overlong_mask": "full"}


def test_the_range_of_a_reward_does_not_decide() -> None:
    def of(scale: float) -> np.ndarray:
        right, style = [1.0, 0.0, 0.0, 1.0], [0.0, 3.0, 1.0, 2.0]
        parts = {"right": ("outcome", right), "style": ("format", [scale * one for one in style])}
        return gdpo(table_of([[0.0]] * 4).with_parts(**parts)).advantage

    assert_close(of(1.0), of(100.0), 1e-3)


def test_three_of_eight_right_by_hand() -> None:
    table = bandits(*[1] * 3, *[0] * 5)
    assert_close(rloo(table).advantage, [0.714286] * 3 + [-0.428571] * 5)
    assert_close(dr_grpo(table).advantage, [0.625] * 3 + [-0.375] * 5)
    assert_close(grpo(table).advantage, [1.207612] * 3 + [-0.724567] * 5, 1e-4)


def test_the_longest_success_is_better_than_a_failure() -> None:
    table = bandits(1, 0, num_tokens=[100_000, 10])
    success, failure = overlong_penalty(table, OverlongOptions(max_tokens=100, buffer_tokens=20)).table.reward
    assert (success, failure) == (0.5, 0.0)
