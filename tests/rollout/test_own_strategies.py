"""What a user's strategy returns is checked, so that a wrong result is not a fault of something else later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentgym.errors import ConfigError
from agentgym.plugins import Component
from agentgym.rollout.branch import Start
from agentgym.rollout.strategies.component import strategy_table
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.results import checked_result

VALUES: dict[str, dict[str, Any]] = {
    "task source": {"positions": [0, 1], "num_tasks": 3},
    "budget": {"rates": [None, 0.5]},
    "horizon": {},
    "branching": {"num_left": 1},
    "pruning": {"running": ["a", "b"]},
    "guidance": {"group_size": 4},
    "replay": {"successes": [True, False], "num_stored": 1},
}


def returned(family: str, result: object, **values: Any) -> object:
    rule = Component(name="mine", family=family, function=lambda: None, options=None, status="experimental")
    return checked_result(rule, {**VALUES[family], **values}, result)


@pytest.mark.parametrize(
    ("family", "wrong", "sound"),
    [
        ("task source", ([0], [0, 3], [0, -1], [0.5, 1], None, 2), ([2, 0], np.array([0, 1]), (0, np.int64(1)))),
        ("budget", ([4], [0, 4], [4.0, 4], None), ([1, 8],)),
        ("horizon", (0, -1, 2.5, "4", True), (1, None)),
        ("branching", ([Start(), Start()], [None], None), ([Start()], [])),
        ("pruning", ([2], [0, 0], [-1], None), ([1, 0], [])),
        ("guidance", ((5, 1), (1, -1), 2, (1,)), ((4, 2), (0, 0))),
        ("replay", ((2, 0), (0, 1), (0,), 1), ((1, 0), None)),
    ],
)
def test_results_that_a_family_cannot_use_are_named(family: str, wrong: Any, sound: Any) -> None:
    for result in wrong:
        with pytest.raises(ConfigError, match=rf"{family} 'mine' returned .*, expected "):
            returned(family, result)
    assert all(returned(family, result) is result for result in sound)


def test_budgets_and_replays_of_the_other_kind_are_checked() -> None:
    finished = {"rate": 0.5}
    rule = Component(name="mine", family="budget", function=lambda: None, options=None, status="user")
    assert checked_result(rule, finished, 0) == 0
    with pytest.raises(ConfigError, match="expected a whole number from 0 on, of additional episodes"):
        checked_result(rule, finished, -1)
    assert returned("replay", [1, 0], group_ages=[2, 1]) == [1, 0]
    with pytest.raises(ConfigError, match="expected whole numbers from 0 to 1, the stored groups"):
        returned("replay", [2], group_ages=[2, 1])


def test_a_configuration_checks_what_a_users_strategy_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Component(name="mine", family="horizon", function=lambda: 0, options=None, status="user")
    monkeypatch.setattr(StrategyConfig, "rule", lambda self, family: own)
    with pytest.raises(ConfigError, match="horizon 'mine' returned 0, expected a whole number of turns"):
        StrategyConfig().call("horizon", step=0, visits=())


def test_the_error_of_a_users_strategy_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(step: int) -> int:
        return 4 // step

    own = Component(name="mine", family="horizon", function=mine, options=None, status="user")
    monkeypatch.setattr(StrategyConfig, "rule", lambda self, family: own)
    assert StrategyConfig().call("horizon", step=1, visits=()) == 4
    with pytest.raises(ConfigError, match="horizon 'mine' failed: ZeroDivisionError: integer division") as raised:
        StrategyConfig().call("horizon", step=0, visits=())
    assert isinstance(raised.value.__cause__, ZeroDivisionError)  # commands show its place


def test_agentgyms_own_strategies_are_not_checked() -> None:
    assert not any(component.is_own for component in strategy_table() if not component.module.startswith("test"))
