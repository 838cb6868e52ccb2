"""Re-credit: what the trainer recorded comes back exactly, memories are carried, numbers are those of the library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from testkit.recorded_runs import group, recorded_batches

from agentgym.credit.compose import CreditConfig, GroupCredit, assign_credit, credit_groups
from agentgym.credit.credited import credit_columns, turn_credits
from agentgym.credit.estimators.gigpo import GigpoOptions
from agentgym.credit.recredit import (
    RECORDED,
    BatchCredit,
    CreditSummary,
    CreditTally,
    RecordedBatch,
    has_memory,
    is_won,
    missing_columns,
    recredit,
)
from agentgym.credit.selections.filters import OverlongMaskOptions
from agentgym.credit.shapers.gating import GraOptions
from agentgym.credit.shapers.penalties import InvalidCallOptions
from agentgym.credit.shapers.tool_use import OtcOptions, ToolBonusOptions
from agentgym.credit.state import CreditState
from agentgym.errors import ConfigError, CorruptDataError

OWN = (
    CreditConfig(estimator="gigpo", gamma=0.9, invalid_penalty=0.1),
    CreditConfig(estimator="gigpo", options=GigpoOptions(anchors="similarity", similarity_threshold=0.6)),
    CreditConfig(estimator="hgpo", norm="mean_norm", shapers=(GraOptions(),)),
    CreditConfig(estimator="grpo", shapers=(OtcOptions(), InvalidCallOptions(penalty=0.2))),
    CreditConfig(estimator="rloo", shapers=(ToolBonusOptions(),), selections=(OverlongMaskOptions(),)),
    CreditConfig(estimator="spo"),
    CreditConfig(estimator="reinforce_pp"),
)


def summaries_of(batches: Sequence[RecordedBatch], configs: dict[str, CreditConfig]) -> dict[str, CreditSummary]:
    tally = CreditTally()
    for credit in recredit(batches, configs):
        tally.add(credit)
    return {summary.name: summary for summary in tally.summaries()}


def per_turn(credit: BatchCredit) -> dict[str, tuple[GroupCredit, ...]]:
    return {name: turn_credits(credit.batch.groups, columns) for name, columns in credit.credit.items()}


@pytest.mark.parametrize("config", OWN, ids=[config.estimator for config in OWN])
def test_the_runs_own_settings_reproduce_the_record(config: CreditConfig) -> None:
    batches = recorded_batches(config)
    for credit in recredit(batches, {"again": config}):
        assert per_turn(credit) == {RECORDED: credit.batch.credit, "again": credit.batch.credit}
    again = summaries_of(batches, {"again": config})["again"]
    assert again.largest_gap == 0
    assert again.correlation == pytest.approx(1)
    assert again.sign_agreement == 1


def test_memory_is_carried_from_step_to_step() -> None:
    config = CreditConfig(estimator="spo")
    batches = recorded_batches(config)
    state, expected = CreditState(), []
    for batch in batches:
        result = credit_groups(batch.groups, config, state=state)
        state = result.state
        expected.append(turn_credits(batch.groups, result))
    given = [per_turn(credit)["spo"] for credit in recredit(batches, {"spo": config})]
    assert given == expected
    forgetful = [assign_credit(batch.groups, config) for batch in batches]
    assert given[0] == forgetful[0]
    assert given[1:] != forgetful[1:]


def test_steps_that_are_not_asked_for_feed_memories_alone() -> None:
    configs = {"spo": CreditConfig(estimator="spo"), "gigpo": CreditConfig()}
    batches = recorded_batches(configs["spo"])
    late = list(recredit(batches, configs, first_step=2))
    everything = list(recredit(batches, configs))
    assert [credit.batch.step for credit in late] == [2, 3]
    assert [per_turn(credit) for credit in late] == [per_turn(credit) for credit in everything[2:]]


def test_a_curriculum_goes_by_the_number_of_the_step() -> None:
    config = CreditConfig(estimator="grpo", shapers=(ToolBonusOptions(),))
    batches = recorded_batches(config)
    (late,) = recredit(batches[3:], {"grpo": config})
    assert per_turn(late)["grpo"] == batches[3].credit


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CreditConfig(estimator="spo"), True),
        (CreditConfig(estimator="rae"), True),
        (CreditConfig(estimator="grpo", shapers=(OtcOptions(),)), True),
        (CreditConfig(estimator="grpo", shapers=(ToolBonusOptions(),)), False),
        (CreditConfig(), False),
    ],
)
def test_has_memory(config: CreditConfig, expected: bool) -> None:
    assert has_memory(config) is expected


def test_missing_columns() -> None:
    assert missing_columns(CreditConfig(estimator="archer")) == ("q_value", "value")
    assert missing_columns(CreditConfig(estimator="opo")) == ()


# ------------------------------------------------------------------------------------------------------- numbers


def columns(batches: Sequence[RecordedBatch], config: CreditConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Advantages, anchor sizes and loss weights over all turns, and each batch's diagnostics, from direct calls."""
    results = [credit_groups(batch.groups, config) for batch in batches]
    advantage = np.concatenate([result.advantage for result in results])
    sizes = np.concatenate([result.anchor_size for result in results])
    weights = np.concatenate([result.loss_weight for result in results])
    return advantage, sizes, weights, [result.diagnostics for result in results]


def test_numbers_are_those_of_direct_calls() -> None:
    own, other = CreditConfig(estimator="gigpo"), CreditConfig(estimator="hgpo", selections=(OverlongMaskOptions(),))
    batches = recorded_batches(own)
    recorded, *_ = columns(batches, own)
    advantage, sizes, weights, _ = columns(batches, other)
    given = summaries_of(batches, {"hgpo": other})["hgpo"]
    credited = np.abs(advantage) > 1e-8
    assert given.num_turns == len(advantage)
    assert given.credited_share == credited.mean() == pytest.approx(1 - given.zero_advantage_share)
    assert given.left_out_share == (weights == 0).mean()
    assert given.anchor_share == (sizes >= 2).mean()
    assert given.anchor_size == sizes[sizes >= 2].mean()
    assert given.advantage_std == pytest.approx(advantage.std())
    assert given.correlation == pytest.approx(np.corrcoef(advantage, recorded)[0, 1])
    assert given.largest_gap == np.abs(advantage - recorded).max()
    either = credited | (np.abs(recorded) > 1e-8)
    same = np.sign(np.where(credited, advantage, 0)) == np.sign(np.where(np.abs(recorded) > 1e-8, recorded, 0))
    assert given.sign_agreement == pytest.approx(same[either].mean())


def test_groups_and_phantoms_agree_with_the_librarys_diagnostics() -> None:
    gated = CreditConfig(estimator="grpo", shapers=(GraOptions(),))  # reads reward parts, so outcomes are known
    plain = replace(gated, shapers=(GraOptions(thresholds=(-10.0,)),))  # every gate is open
    batches = recorded_batches(plain)
    given = summaries_of(batches, {"gated": gated, "plain": plain})
    for name, config in (("gated", gated), ("plain", plain)):
        advantage, _, _, diagnostics = columns(batches, config)
        num_turns = [len(credit_columns(batch.groups, batch.credit).advantage) for batch in batches]
        phantom = np.average([row["phantom_share"] for row in diagnostics], weights=num_turns)
        flat = np.mean([row["flat_group_share"] for row in diagnostics])  # as many groups in each
        assert given[name].phantom_share == pytest.approx(phantom)
        assert given[name].flat_group_share == pytest.approx(flat)
        assert given[name].num_turns == len(advantage)
    assert given["plain"].phantom_share > 0.1
    assert given["gated"].phantom_share == 0
    assert given["gated"].uncredited_group_share >= 1 / 3


def test_a_group_is_won_by_success_or_by_an_outcome_above_0() -> None:
    rng = np.random.default_rng(1)
    of = group(0, rng, can_win=False)
    assert not is_won(of)
    assert is_won(replace(of, trajectories=(replace(of.trajectories[0], success=True),)))
    winner = next(t for seed in range(9) for t in group(0, np.random.default_rng(seed)).trajectories if t.success)
    assert is_won(replace(of, trajectories=(replace(winner, success=False),)))


def test_what_is_not_defined_is_none() -> None:
    batches = recorded_batches(CreditConfig(estimator="grpo"))
    given = summaries_of(batches, {"grpo": CreditConfig(estimator="grpo")})["grpo"]
    assert (given.anchor_share, given.anchor_size) == (None, None)
    unknown = [replace(batch, credit=()) for batch in batches]
    given = summaries_of(unknown, {"gigpo": CreditConfig()})["gigpo"]
    assert (given.correlation, given.sign_agreement, given.largest_gap) == (None, None, None)
    assert summaries_of(unknown, {})[RECORDED].num_turns == 0
    flat = summaries_of([replace(batch, credit=tuple(map(_silent, batch.credit))) for batch in batches], {})[RECORDED]
    assert (flat.credited_share, flat.correlation, flat.sign_agreement) == (0, None, None)
    assert all(math.isfinite(value) for value in (flat.advantage_std, flat.phantom_share))


def _silent(credit: GroupCredit) -> GroupCredit:
    return tuple(tuple(replace(turn, advantage=0.0) for turn in row) for row in credit)


def test_groups_left_out_of_the_record_are_left_out_of_comparisons() -> None:
    config = CreditConfig()
    batches = recorded_batches(config)
    partly = [replace(batch, credit=((), *batch.credit[1:])) for batch in batches]
    given = summaries_of(partly, {"gigpo": config})
    num_missing = sum(len(t.turns) for batch in batches for t in batch.groups[0].valid)
    assert given[RECORDED].num_turns == given["gigpo"].num_turns - num_missing
    assert given["gigpo"].largest_gap == 0


def test_credit_of_other_episodes_is_refused() -> None:
    (batch,) = recorded_batches(CreditConfig(), num_steps=1)
    with pytest.raises(CorruptDataError, match="group 0 has 5 episodes, credit of 4"):
        credit_columns(batch.groups, (batch.credit[0][1:], *batch.credit[1:]))
    cut = (batch.credit[0][0][:-1], *batch.credit[0][1:])
    with pytest.raises(CorruptDataError, match=r"group 0 has an episode of . turns and credit of"):
        credit_columns(batch.groups, (cut, *batch.credit[1:]))


def test_errors_name_the_estimator_and_the_step() -> None:
    rng = np.random.default_rng(0)
    alone = RecordedBatch(step=6, groups=(group(0, rng, num_members=1),))
    with pytest.raises(ConfigError, match="grpo, step 7: estimator 'grpo' compares the members of a group"):
        list(recredit([alone], {"grpo": CreditConfig(estimator="grpo")}))
    with pytest.raises(ConfigError, match=r"turn_gae, step 7: .*value"):
        list(recredit([alone], {"turn_gae": CreditConfig(estimator="turn_gae")}))
