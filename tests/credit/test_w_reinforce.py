"""W-REINFORCE: its three variants by hand, and a run that it changes."""

from __future__ import annotations

import pytest
from testkit.acting import weights_after
from testkit.credit_tables import table_of

from agentgym.credit.estimators.w_reinforce import WReinforceOptions, w_reinforce
from agentgym.errors import ConfigError


def test_w_reinforce() -> None:
    """A success, a failure, and a success whose turns have rewards of their own."""
    table = table_of([[0, 1], [0, 0], [0.3, 0.4]])
    assert w_reinforce(table).advantage.tolist() == [0.1, 0.1, -1.0, -1.0, 0.1, 0.1]
    only_failures = w_reinforce(table, WReinforceOptions(positive_weight=0.0))
    assert only_failures.advantage.tolist() == [0.0, 0.0, -1.0, -1.0, 0.0, 0.0]
    only_successes = w_reinforce(table, WReinforceOptions(positive_weight=1.0, negative_weight=0.0))
    assert only_successes.advantage.tolist() == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert w_reinforce(table, WReinforceOptions(right_from=0.8)).advantage.tolist()[-1] == -1.0


def test_weights_that_train_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="both 0"):
        WReinforceOptions(positive_weight=0.0, negative_weight=0.0)


def test_it_acts_in_a_run() -> None:
    chosen = "credit.estimator=w_reinforce"
    assert weights_after(chosen) != weights_after()
    nsr = 'credit.options={"kind": "w_reinforce", "positive_weight": 0}'
    assert weights_after(chosen) != weights_after(chosen, nsr)
