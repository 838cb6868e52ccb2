"""TTRL's reward: worked examples, its edges, and a run that it changes."""

from __future__ import annotations

import pytest
from testkit.acting import metrics_after, weights_after
from testkit.credit_tables import table_of

from agentgym.credit.shapers.majority import MajorityOptions, majority
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError


def test_majority() -> None:
    """Two of four answer 7, though the grader likes 5; the fourth says nothing in its last turn."""
    table = table_of([[0, 1], [0], [0], [0, 0]]).with_columns(answer=[[7, 5], [7], [7], [7, -1]])
    shaped = majority(table)
    assert shaped.table.reward.tolist() == [0, 0, 1, 1, 0, 0]
    assert shaped.diagnostics == {"majority_share": 0.5, "majority_agreement": 0.25}
    assert majority(table, MajorityOptions(least_share=0.5)).table.reward.sum() == 2
    assert majority(table, MajorityOptions(least_share=0.6)).table.reward.sum() == 0


def test_of_equal_answers_the_first_one_wins() -> None:
    table = table_of([[0], [0], [0], [0]]).with_columns(answer=[9, 3, 3, 9])
    assert majority(table).table.reward.tolist() == [1, 0, 0, 1]


def test_groups_vote_apart_and_silence_earns_nothing() -> None:
    table = TurnTable.from_lists(rewards=[[0], [0], [1], [0], [0]], group_of_trajectory=[0, 0, 0, 1, 1])
    shaped = majority(table.with_columns(answer=[4, 4, 2, -1, -1]))
    assert shaped.table.reward.tolist() == [1, 1, 0, 0, 0]
    assert shaped.diagnostics["majority_share"] == pytest.approx((2 / 3 + 0) / 2)


def test_it_needs_answers() -> None:
    with pytest.raises(ConfigError, match="answer"):
        majority(table_of([[1]]))


def test_it_acts_in_a_run() -> None:
    grpo = ("credit.estimator=grpo",)
    chosen = (*grpo, 'credit.shapers=[{"kind": "majority"}]')
    assert weights_after(*chosen) != weights_after(*grpo)
    assert all(0 < row["credit/majority_share"] <= 1 for row in metrics_after(*chosen))
