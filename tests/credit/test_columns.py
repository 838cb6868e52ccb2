"""Columns of the credit table: each has a recorder, and the state after the last turn is one of them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np
from testkit.corridors import Corridor

from agentgym.api.rollouts import collect_rollouts
from agentgym.credit.columns import FROM_GROUPS, OF_MODEL, OF_SHAPERS, turn_table
from agentgym.credit.component import credit_table
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.modulators.salt import SaltOptions, salt
from agentgym.credit.table import TurnTable
from agentgym.credit.trial import trial_table

WITH_PARTS = ("part_names", "part_roles")
BY_FROM_ROWS = ("source_row",)


def test_every_optional_column_is_filled_by_a_recorder_a_model_or_a_shaper() -> None:
    optional = {field.name for field in fields(TurnTable) if field.default is not MISSING}
    assert optional == {*FROM_GROUPS, *OF_MODEL, *OF_SHAPERS, *WITH_PARTS, *BY_FROM_ROWS}
    for component in credit_table():
        made: Any = None if component.options is None else component.options()
        assert {*component.columns(made)} <= optional, component.name


def test_the_trial_of_own_components_has_every_column() -> None:
    empty = [field.name for field in fields(TurnTable) if getattr(trial_table(), field.name) is None]
    assert empty == [*BY_FROM_ROWS]


def test_the_last_steps_of_episodes_that_end_in_one_state_merge() -> None:
    (group,) = collect_rollouts("agentgym/Household-v0", "oracle", tasks=1, group_size=3)
    table = turn_table([group], ["action", "final_anchor"])
    ends = np.flatnonzero(np.append(np.diff(table.trajectory), 1))
    assert table.final_anchor is not None and len(set(table.final_anchor[ends].tolist())) == 1
    assert table.final_anchor[0] not in table.anchor, "an end that no turn was taken in has a code of its own"
    advantage = table.trajectory.astype(float)
    np.testing.assert_allclose(salt(table, advantage).advantage[ends], advantage[ends].mean())
    config = CreditConfig(estimator="grpo", modulators=(SaltOptions(),))
    assert credit_groups([group], config).table.final_anchor is not None


class Forgets(Corridor):
    """A corridor that cannot tell its state after the end."""

    is_forgotten = False

    def state_key(self) -> str:
        if self.is_forgotten:
            raise RuntimeError("the episode is over")
        return super().state_key()

    async def astep(self, action: Any) -> Any:
        stepped = await super().astep(action)
        self.is_forgotten = stepped[2] or stepped[3]
        return stepped


def test_an_environment_without_a_key_after_its_end_completes_all_the_same() -> None:
    (group,) = collect_rollouts(Forgets, "oracle", tasks=1, group_size=2)
    assert [one.success for one in group.valid] == [True, True]
    assert {one.final_state_key for one in group.valid} == {None}
    table = turn_table([group], ["final_anchor"])
    assert table.final_anchor is not None and set(table.final_anchor.tolist()) == {-1}
