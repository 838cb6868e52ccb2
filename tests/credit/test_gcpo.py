"""GCPO's reward: a worked example, its edges, and a run that it changes."""

from __future__ import annotations

from testkit.acting import weights_after
from testkit.counting_runs import ENV_FILE
from testkit.credit_tables import assert_close, bandits, table_of

from agentgym.credit.shapers.gcpo import GcpoOptions, gcpo


def test_gcpo() -> None:
    """In the first group one of two with calls is right and none without; in the second calls harm."""
    table = bandits(1, 0, 0, 0, 1, groups=[0, 0, 0, 1, 1]).with_columns(num_calls=[1, 3, 0, 1, 0])
    assert_close(gcpo(table).table.reward, [1.1, 0.1, 0.0, -0.1, 1.0])


def test_small_differences_and_groups_of_one_kind_earn_nothing() -> None:
    table = bandits(1, 0, 0, 1, 0, 1, groups=[0, 0, 0, 1, 1, 2]).with_columns(num_calls=[1, 1, 0, 1, 1, 1])
    assert_close(gcpo(table, GcpoOptions(margin=0.5)).table.reward, table.reward)


def test_it_is_paid_once_on_the_last_turn() -> None:
    table = table_of([[0, 0, 1], [0]]).with_columns(num_calls=[1, 0, 0, 0])
    assert_close(gcpo(table).table.reward, [0, 0, 1.1, 0])
    assert_close(gcpo(table, GcpoOptions(least_calls=2)).table.reward, table.reward)


def test_it_acts_in_a_run() -> None:
    grpo = ("credit.estimator=grpo", f"env.id={ENV_FILE}:Counting-v0", "sft.num_demos=0")
    chosen = (*grpo, 'credit.shapers=[{"kind": "gcpo", "bonus": 0.5, "least_calls": 3}]')
    assert weights_after(*chosen) != weights_after(*grpo)
