"""Worked examples and edges of every modulator."""

from __future__ import annotations

import numpy as np
import pytest
from testkit.credit_tables import assert_close, bandits, table_of

from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.estimators.grpo import grpo
from agentgym.credit.modulators.branches import R3lOptions, SharedPrefixOptions, owners, r3l_pivot, shared_prefix
from agentgym.credit.modulators.entropy import EmpgOptions, aepo_advantage, empg
from agentgym.credit.modulators.purified import purified
from agentgym.credit.modulators.right_prefix import RightPrefixOptions, right_prefix
from agentgym.credit.modulators.salt import SaltOptions, salt
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError


def graph() -> TurnTable:
    """τ1 s0-a→s1-b→s2-c; τ2 s0-a→s1-d→s3-e; τ3 s0-a→s1-b→s2-f; τ4 s0-g→s4-h."""
    states = [["s0", "s1", "s2"], ["s0", "s1", "s3"], ["s0", "s1", "s2"], ["s0", "s4"]]
    actions = ["abc", "ade", "abf", "gh"]
    table = TurnTable.from_lists(
        rewards=[[0, 0, 1], [0, 0, 0], [0, 0, 1], [0, 0]], states=states, group_of_trajectory=[0] * 4
    )
    return table.with_columns(action=[ord(c) for row in actions for c in row])


def test_salt() -> None:
    advantage = grpo(graph()).advantage
    assert_close(advantage[[0, 3, 6, 9]], [0.866024, -0.866024, 0.866024, -0.866024])
    expected = [0.288675, 0.866024, 0.866024, 0.288675, -0.866024, -0.866024, 0.288675, 0.866024, 0.866024]
    assert_close(salt(graph(), advantage).advantage, [*expected, -0.866024, -0.866024])


def test_salt_merges_final_turns_only_if_the_end_is_the_same() -> None:
    table = TurnTable.from_lists(rewards=[[1], [0]], states=[["s"], ["s"]], group_of_trajectory=[0, 0])
    table = table.with_columns(action=[0, 0])
    advantage = np.array([1.0, -1.0])
    assert_close(salt(table, advantage).advantage, [1, -1])
    assert_close(salt(table.with_columns(final_anchor=[7, 7]), advantage).advantage, [0, 0])
    assert_close(salt(table.with_columns(final_anchor=[7, -1]), advantage).advantage, [1, -1])


def test_salt_never_merges_across_groups() -> None:
    table = TurnTable.from_lists(rewards=[[1, 1], [0, 0]], states=[["s", "t"]] * 2, group_of_trajectory=[0, 1])
    advantage = np.array([1.0, 1, -1, -1])
    assert_close(salt(table.with_columns(action=[0, 1, 0, 1]), advantage).advantage, advantage)


def test_salt_with_history_tells_ways_apart() -> None:
    states = [["x", "s", "t"], ["y", "s", "t"]]
    table = TurnTable.from_lists(rewards=[[0] * 3] * 2, states=states, group_of_trajectory=[0, 0])
    table = table.with_columns(action=[0, 1, 2, 0, 1, 3])
    advantage = np.array([1.0] * 3 + [-1.0] * 3)
    assert_close(salt(table, advantage).advantage, [1, 0, 1, -1, 0, -1])
    assert_close(salt(table, advantage, SaltOptions(history=2)).advantage, advantage)


def test_empg() -> None:
    table = table_of([[0, 1], [0, 0]], entropy=[0.2, 1.0, 0.6, 0.4])
    advantage = np.array([1.0, 1, -1, -1])
    assert_close(empg(table, advantage).advantage, [1.463248, 0.526479, -0.850252, -1.139475])


def test_empg_with_equal_entropies_adds_the_future_term_alone() -> None:
    table = table_of([[0, 1], [0, 0]], entropy=[0.3] * 4)
    advantage = np.array([1.0, 1, -1, -1])
    expected = advantage + np.array([0.05, 0, 0.05, 0])
    assert_close(empg(table, advantage).advantage, expected - expected.mean())
    assert_close(empg(table, advantage, EmpgOptions(zeta=0.0)).advantage, advantage)


def test_aepo_advantage() -> None:
    table = bandits(1, num_tokens=[4], token_entropy=[0.1, 0.2, 1.5, 0.2])
    result = aepo_advantage(table, np.array([2.0]))
    assert_close(result.token_advantage, 2 * np.array([0.880299, 0.910224, 1.299253, 0.910224]))
    assert_close(result.advantage, [2.0])


def test_aepo_with_equal_entropies_changes_nothing() -> None:
    table = bandits(1, 0, num_tokens=[1, 2], token_entropy=[0.5] * 3)
    assert_close(aepo_advantage(table, np.array([1.0, -1.0])).token_advantage, [1, -1, -1])


def tree() -> TurnTable:
    """Trajectory 1 branched from 0 at turn 1, 2 from 1 at turn 2."""
    return table_of(
        [[0, 0, 1], [0, 0, 0], [0, 0, 0]],
        parent=[-1] * 3 + [0] * 3 + [1] * 3,
        branch_turn=[0] * 3 + [1] * 3 + [2] * 3,
    )


def test_shared_prefix() -> None:
    table = table_of([[0, 1], [0, 0]], parent=[-1, -1, 0, 0], branch_turn=[0, 0, 1, 1])
    advantage = np.array([0.73, 0.73, -1.09, -1.09])
    hard = shared_prefix(table, advantage)
    assert_close(hard.advantage, [-0.18, 0.73, -0.18, -1.09])
    assert_close(hard.loss_weight, [1, 1, 0, 1])
    soft = shared_prefix(table, advantage, SharedPrefixOptions(attribution="soft", count="replicate"))
    assert_close(soft.advantage, advantage)
    assert soft.loss_weight is None


def test_a_part_of_a_turn_trains_where_it_was_sampled() -> None:
    """Trajectory 1 copied the first turn of 0, and two tokens of its second one of three."""
    table = table_of([[0, 1], [0, 0]], parent=[-1, -1, 0, 0], branch_turn=[0, 0, 1, 1])
    table = table.with_columns(num_tokens=[2, 3, 2, 4], num_shared_tokens=[0, 0, 0, 2])
    hard = shared_prefix(table, np.array([1.0, 1.0, -1.0, -1.0]))
    assert_close(hard.advantage, [0, 1, 0, -1])
    assert_close(hard.loss_weight, [1, 1, 0, 1])
    assert hard.token_keep is not None
    assert hard.token_keep.tolist() == [True] * 7 + [False, False, True, True]
    soft = shared_prefix(table, np.zeros(4), SharedPrefixOptions(attribution="soft", count="replicate"))
    assert soft.token_keep is None
    assert shared_prefix(table.with_columns(num_shared_tokens=[0] * 4), np.zeros(4)).token_keep is None
    orphan = table.with_columns(parent=[-1] * 4)
    assert shared_prefix(orphan, np.zeros(4)).token_keep is None, "its parent is no part of the table"


def test_owners_of_turns_in_a_tree_of_two_levels() -> None:
    assert owners(tree()).tolist() == [0, 0, 0, 0, 1, 1, 0, 1, 2]


def test_hard_attribution_weighs_each_turn_once() -> None:
    hard = shared_prefix(tree(), np.array([3.0] * 3 + [0.0] * 3 + [-3.0] * 3))
    assert_close(hard.advantage, [0, 3, 3, 0, -1.5, 0, 0, -1.5, -3])
    assert_close(hard.loss_weight, [1, 1, 1, 0, 1, 1, 0, 0, 1])


def test_a_trajectory_cannot_be_its_own_ancestor() -> None:
    with pytest.raises(ConfigError, match="its own ancestor"):
        owners(table_of([[0], [0]], parent=[1, 0], branch_turn=[1, 1]))


def test_right_prefix() -> None:
    table = table_of([[0, 0, 0], [0, 0], [1, 1, 1]], groups=[0] * 3).with_columns(
        is_faulty=[[False, True, True], [False, False], [False, False, True]]
    )
    advantage = np.array([-0.5, -0.5, -0.5, -1.0, -1.0, 0.7, 0.7, 0.7])
    made = right_prefix(table, advantage)
    assert made.advantage.tolist() == advantage.tolist()
    assert made.loss_weight is not None
    assert made.loss_weight.tolist() == [0, 1, 1, 1, 1, 1, 1, 1], "no blame, but praise stays; no fault, no prefix"
    config = CreditConfig(estimator="dr_grpo", modulators=(RightPrefixOptions(),))
    assert credit_turns(table, config).loss_weight.tolist() == [0, 1, 1, 1, 1, 1, 1, 1]


def test_r3l_pivot() -> None:
    table = bandits(0, 0, 1, 0, parent=[-1] * 4, branch_turn=[0] * 4)
    advantage = grpo(table).advantage
    assert_close(advantage, [-0.5, -0.5, 1.5, -0.5])
    assert_close(r3l_pivot(table, advantage).advantage, [-0.5, -0.5, 1, -0.5], 2e-5)
    unlimited = R3lOptions(perfect_return=float("inf"))
    assert_close(r3l_pivot(table, advantage, unlimited).advantage, [-0.5, -0.5, 4.5, -0.5], 2e-5)


def test_r3l_trains_neither_base_nor_retry_before_the_pivot() -> None:
    table = table_of([[0, 0, 0], [0, 0, 1], [0]], parent=[-1] * 3 + [0] * 3 + [-1], branch_turn=[0] * 3 + [2] * 3 + [0])
    result = r3l_pivot(table, np.zeros(7))
    assert_close(result.loss_weight, [0, 0, 1, 0, 0, 1, 1])


def test_r3l_in_a_group_where_all_succeed_or_all_fail() -> None:
    table = bandits(1, 1, 0, 0, groups=[0, 0, 1, 1], parent=[-1] * 4, branch_turn=[0] * 4)
    assert_close(r3l_pivot(table, np.zeros(4), R3lOptions(alpha=2.0)).advantage, [1, 1, 0, 0])


def test_purified() -> None:
    """1 purifies 0, and 2 purifies 1; 3 began at the start."""
    table = table_of([[0, 0, 1], [0, 1], [1], [0]])
    table = table.with_columns(parent=[-1, -1, -1, 0, 0, 1, -1])
    advantage = np.array([0.5, 0.5, 0.5, 0.2, 0.2, 1.0, -1.0])
    result = purified(table, advantage)
    assert result.loss_weight is not None
    assert result.loss_weight.tolist() == [0, 0, 0, 0, 0, 1, 1] and result.advantage is advantage
    assert purified(table.with_columns(parent=[-1] * 7), advantage).loss_weight.tolist() == [1.0] * 7  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="parent"):
        purified(table_of([[0]]), np.zeros(1))
