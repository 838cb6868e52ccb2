"""Worked examples and edges of every selection."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.credit_tables import assert_close, bandits, few, table_of

from agentgym.credit.columns import turn_table
from agentgym.credit.compose import CreditConfig, assign_credit, credit_turns
from agentgym.credit.selections.downsampling import (
    D3sOptions,
    PodsOptions,
    RocOptions,
    d3s,
    most_varied,
    pods,
    roc,
    roc_penalty,
)
from agentgym.credit.selections.filters import (
    DynamicSamplingOptions,
    OverlongMaskOptions,
    VoidTurnsOptions,
    dynamic_sampling,
    overlong_mask,
    void_turns,
)
from agentgym.credit.selections.uncertain_turns import UncertainTurnsOptions, uncertain_turns
from agentgym.errors import ConfigError
from agentgym.types import (
    Message,
    RewardPart,
    Segment,
    Status,
    Task,
    ToolCall,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


def test_dynamic_sampling() -> None:
    table = bandits(1, 1, 1, 1, 0, 1, 0, 0, 0, groups=[0] * 3 + [1] * 3 + [2] * 3)
    assert dynamic_sampling(table).tolist() == [False] * 3 + [True] * 3 + [False] * 3


def test_dynamic_sampling_looks_at_the_outcome_or_at_every_part() -> None:
    table = bandits(0, 0, groups=[0, 0]).with_parts(a=("outcome", [1, 0]), b=("format", [0, 1]))
    assert dynamic_sampling(table, DynamicSamplingOptions(metric="outcome")).all()
    assert dynamic_sampling(table, DynamicSamplingOptions(metric="components")).all()
    assert not dynamic_sampling(table, DynamicSamplingOptions(metric="return")).any()


def test_dynamic_sampling_keeps_singletons_and_has_a_least_spread() -> None:
    table = bandits(1, 0.5, 0.5005, groups=[0, 1, 1])
    assert dynamic_sampling(table).tolist() == [True, True, True]
    assert dynamic_sampling(table, DynamicSamplingOptions(min_std=1e-3)).tolist() == [True, False, False]


def test_void_turns() -> None:
    table = bandits(1, 0, 1, 0, is_void=[False, False, False, True])
    result = credit_turns(table, CreditConfig(estimator="grpo", selections=(VoidTurnsOptions(),)))
    assert_close(result.advantage, [0.866024, -0.866024, 0.866024, -0.866024])
    assert_close(result.loss_weight, [1, 1, 1, 0])
    assert result.statistics == {"void_turns": "full"}


def test_a_void_turn_masks_its_whole_trajectory() -> None:
    assert void_turns(table_of([[0, 0], [0]], is_void=[False, True, False])).tolist() == [False, False, True]


def test_overlong_mask() -> None:
    table = table_of([[0, 1], [0]], is_truncated=[False, False, True])
    assert overlong_mask(table).tolist() == [True, True, False]
    full = credit_turns(table, CreditConfig(estimator="grpo", selections=(OverlongMaskOptions(),)))
    assert_close(full.advantage, [0.707106, 0.707106, -0.707106])
    assert_close(full.loss_weight, [1, 1, 0])
    kept = credit_turns(table, CreditConfig(estimator="grpo", selections=(OverlongMaskOptions(statistics="kept"),)))
    assert_close(kept.advantage, [0, 0, 0])
    assert kept.statistics == {"overlong_mask": "kept"}


def test_uncertain_turns() -> None:
    entropy = [0.5, 0.1, 0.4, 0.2, 0.3, 0.9]
    table = table_of([[0, 0, 1], [0, 0], [1]], groups=[0, 0, 1], entropy=entropy)
    keep = uncertain_turns(table)
    assert keep.tolist() == [True, False, True, True, True, True], "4 of 5 in one group, the one turn of the other"
    assert uncertain_turns(table, UncertainTurnsOptions(share=0.4)).tolist() == [True, False, True, False, False, True]
    result = credit_turns(table, CreditConfig(estimator="dr_grpo", selections=(UncertainTurnsOptions(),)))
    assert_close(result.advantage, [0.5, 0.5, 0.5, -0.5, -0.5, 0])
    assert result.loss_weight.tolist() == [1, 0, 1, 1, 1, 1]


def test_uncertain_turns_keeps_the_earlier_of_equal_turns_and_exact_shares() -> None:
    table = table_of([[0] * 5, [0] * 5], entropy=[0.5] * 10)
    assert uncertain_turns(table).tolist() == [True] * 8 + [False] * 2
    with pytest.raises(ConfigError, match="share is 1, so that all turns train"):
        CreditConfig(selections=(UncertainTurnsOptions(share=1.0),))


def test_roc() -> None:
    penalties = [0, 2, 5, 1, 9, 5]
    table = bandits(*[1] * 6, *[0] * 6, num_calls=[10] * 12, num_errors=[*penalties, *[0] * 6])
    keep = roc(table, RocOptions(keep=6))
    assert np.flatnonzero(keep).tolist() == [0, 1, 3, 6, 7, 8]


def test_roc_drops_small_and_equal_groups() -> None:
    columns = {"num_calls": [1] * 5, "num_errors": [0] * 5}
    assert not roc(bandits(1, 0, 1, 1, 1, groups=[0, 0, 1, 1, 1], **columns), RocOptions(keep=3)).any()


def answered(said: str, *calls: str, status: Status = Status.COMPLETED, reward: float = 1.0) -> Trajectory:
    """An episode of one turn for each call, and a last one that says something."""
    task = Task(id="t", split="train", seed=0)
    actions = [Message("assistant", "", (ToolCall(call),)) for call in calls]
    actions += [Message("assistant", said)] if said else []
    turns = tuple(Turn(index=at, action=action) for at, action in enumerate(actions))
    turns = (*turns[:-1], replace(turns[-1], reward_parts=(RewardPart("solved", reward),)))
    return Trajectory(task=task, env_id="e", status=status, segments=(Segment(turns),), seed=0)


def recorded_group(*episodes: Trajectory) -> list[TrajectoryGroup]:
    return [TrajectoryGroup(ordinal=0, task=episodes[0].task, trajectories=episodes)]


@pytest.mark.parametrize(
    ("episode", "expected"),
    [
        (answered("It is 7."), [1]),
        (answered("<answer>7</answer>", "look"), [0, 1]),
        (answered("<answer>7</answer> or <answer>8</answer>"), [2]),
        (answered("<answer>7"), [0]),
        (answered("", "look", "submit"), [0, 1]),
        (answered("Hm, 7?", "submit_answer"), [1, 0]),
        (answered("", "look", "go"), [0, 0]),
        (answered("It is", status=Status.TRUNCATED_TOKENS), [0]),
    ],
)
def test_final_answers_are_recorded(episode: Trajectory, expected: list[int]) -> None:
    table = turn_table(recorded_group(episode), ["num_answers"])
    assert table.num_answers is not None
    assert table.num_answers.tolist() == expected


def test_rocs_format_penalty_acts_on_recorded_episodes() -> None:
    """Of four correct episodes with equal calls, the one without an answer and the one with three leave."""
    correct = [
        answered("<answer>7</answer>" * 3, "look"),
        answered("<answer>7</answer>", "look"),
        answered("7", "look", status=Status.TRUNCATED_TURNS),
        answered("7", "look"),
    ]
    wrong = [answered("8", "look", reward=0.0) for _ in range(4)]
    config = CreditConfig(estimator="grpo", selections=(RocOptions(keep=4),))
    credit = assign_credit(recorded_group(*correct, *wrong), config)[0]
    trained = [any(turn.loss_weight for turn in row) for row in credit]
    assert trained == [False, True, False, True, True, True, False, False]


def test_roc_that_keeps_more_than_a_group_has_is_refused() -> None:
    config = CreditConfig(estimator="grpo", selections=(RocOptions(keep=16),))
    with pytest.raises(ConfigError, match=r"roc keeps 16 members .* with group_size 8 nothing would train"):
        config.check_group_size(8)
    config.check_group_size(16)


def test_a_batch_that_selections_drop_whole_is_reported() -> None:
    config = CreditConfig(estimator="dr_grpo", selections=(DynamicSamplingOptions(metric="return"),))
    dropped = credit_turns(bandits(1, 1, 0, 0, groups=[0, 0, 1, 1]), config)
    assert dropped.diagnostics["dropped_group_share"] == 1.0
    (warning,) = dropped.warnings
    assert warning.startswith("the selections (dynamic_sampling) drop every group of this batch: its gradient is 0")
    half = credit_turns(bandits(1, 0, 0, 0, groups=[0, 0, 1, 1]), config)
    assert half.diagnostics["dropped_group_share"] == 0.5
    assert half.warnings == ()


def test_roc_keeps_a_minimum_of_either_kind() -> None:
    table = bandits(1, *[0] * 9, 1, num_calls=[1] * 11, num_errors=[0] * 11)
    kept = np.flatnonzero(roc(table, RocOptions(keep=6)))
    assert kept.tolist() == [0, 1, 2, 3, 4, 10]


def test_roc_penalty_of_calls_and_format() -> None:
    table = table_of([[0, 0], [0, 0], [0, 0]], num_calls=[2, 2, 0, 0, 1, 1], num_errors=[1, 0, 0, 0, 0, 0])
    assert_close(roc_penalty(table), [0.25, 0.5, 0])
    assert_close(roc_penalty(table.with_columns(num_answers=[0, 1, 0, 0, 2, 2])), [0.25, 1.5, 1.0])


def test_roc_statistics_are_those_of_the_kept() -> None:
    table = bandits(1, 1, 0, 0, num_calls=[1] * 4, num_errors=[1, 0, 0, 0])
    config = CreditConfig(estimator="dr_grpo", selections=(RocOptions(keep=3, min_positive=1, min_negative=2),))
    result = credit_turns(table, config)
    assert_close(result.advantage, [0, 2 / 3, -1 / 3, -1 / 3])
    assert_close(result.loss_weight, [0, 1, 1, 1])


def test_pods() -> None:
    rewards = np.array([1, 1, 0, 0.5, 0.2, 0.9])
    assert np.flatnonzero(most_varied(rewards, 4)).tolist() == [0, 1, 2, 4]
    assert_close(rewards[most_varied(rewards, 4)].var(), 0.2075)
    assert np.flatnonzero(most_varied(rewards, 3)).tolist() == [0, 1, 2]
    assert_close(rewards[most_varied(rewards, 3)].var(), 0.222222)
    kept = pods(bandits(1, 0, 1, 0, 1, 0), PodsOptions(keep=4))
    assert kept.tolist() == [True, True, True, True, False, False]


@few
@given(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=8), st.integers(1, 8))
def test_no_subset_varies_more(values: list[float], keep: int) -> None:
    array = np.array(values)
    mask = most_varied(array, keep)
    assert mask.sum() == min(keep, len(values))
    if keep < len(values):
        best = max(float(np.var(subset)) for subset in combinations(values, keep))
        assert_close(array[mask].var(), best, 1e-9)


def test_d3s() -> None:
    table = bandits(1, 0, 0, num_tokens=[1, 1, 1], token_entropy=[0.1, 1, 2])
    advantage = np.array([1.0, -0.5, 0.2])
    assert_close(np.abs(advantage) * [0.1, 1, 2], [0.1, 0.5, 0.4])
    tokens = [d3s(table, advantage, step, D3sOptions(start_share=0.2, anneal_steps=10))[1] for step in (0, 5, 10)]
    assert [mask.tolist() for mask in tokens] == [[False, True, False], [False, True, True], [True, True, True]]


def test_d3s_leaves_trajectories_out_after_the_estimator() -> None:
    table = bandits(1, 0, 0.5, num_tokens=[1, 1, 1], token_entropy=[1, 1, 1])
    options = D3sOptions(sample_share=0.5, start_share=1.0)
    result = credit_turns(table, CreditConfig(estimator="dr_grpo", selections=(options,)))
    assert_close(result.advantage, [0.5, -0.5, 0])
    assert_close(result.loss_weight, [1, 1, 0])
    assert result.token_keep is not None
    assert result.token_keep.tolist() == [True, True, False]


@pytest.mark.parametrize("kind", [PodsOptions(keep=2), DynamicSamplingOptions()])
def test_what_is_left_out_has_no_weight(kind: object) -> None:
    table = bandits(1, 1, 0, 1, 1, 1, groups=[0] * 3 + [1] * 3)
    result = credit_turns(table, CreditConfig(estimator="grpo", selections=(kind,)))
    assert (result.loss_weight == 0).any()
    assert_close(result.advantage[result.loss_weight == 0], np.zeros(int((result.loss_weight == 0).sum())))
    assert_close(result.diagnostics["left_out_share"], (result.loss_weight == 0).mean())
