"""What must hold on any input: order and layout do not matter, constants and scales cancel where they should."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from testkit.credit_tables import Batch, assert_close, batch_table, batches, episodes, few

from agentgym.credit.component import ESTIMATORS, Shared
from agentgym.credit.compose import CreditConfig, assign_credit
from agentgym.credit.estimators.gae import BiLevelGaeOptions, TokenGaeOptions, TurnGaeOptions
from agentgym.credit.estimators.multi_reward import gdpo
from agentgym.credit.modulators.branches import shared_prefix
from agentgym.credit.modulators.entropy import aepo_advantage, empg
from agentgym.credit.modulators.salt import salt
from agentgym.credit.parts import on_last_turn
from agentgym.credit.statistics import per_trajectory, token_rows, trajectories
from agentgym.credit.table import Floats, TurnAdvantages, TurnTable
from agentgym.types import (
    Completion,
    FinishReason,
    Message,
    RewardPart,
    Segment,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

ORDER_MATTERS = ("rae", "riskpo")
"""A running baseline by definition; RiskPO bundles the k-th members of several groups."""
SHIFT_INVARIANT = (
    "grpo",
    "dr_grpo",
    "rloo",
    "opo",
    "opmd",
    "mc_grpo",
    "supo",
    "flow_grpo",
    "capo",
    "reinforce_pp_baseline",
    "gigpo",
    "hgpo",
    "igpo",
    "gdpo",
    "mt_grpo",
    "dr_mas",
)
SCALE_INVARIANT = ("grpo", "supo", "flow_grpo", "reinforce_pp_baseline", "gigpo", "hgpo", "mt_grpo", "dr_mas")


def estimate(name: str, table: TurnTable, **shared: Any) -> TurnAdvantages:
    """One estimator with its default settings, on a table it can take."""
    if name == "spo":
        won = (per_trajectory(table, table.reward) > 0).astype(np.float64)
        table = replace(table, reward=on_last_turn(table, won))
    entry = ESTIMATORS[name]
    options = None if entry.options is None else entry.options()
    values = {"table": table, "step": 0, **asdict(replace(Shared(), **shared))}
    credited, _ = entry.run(values, options, {})
    assert isinstance(credited, TurnAdvantages)
    return credited


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - set(ORDER_MATTERS)))
@few
@given(batch=batches, random=st.randoms(use_true_random=False))
def test_the_order_of_trajectories_does_not_matter(name: str, batch: Batch, random: Any) -> None:
    order = list(range(len(batch)))
    random.shuffle(order)
    straight, shuffled = batch_table(batch), batch_table([batch[i] for i in order])
    a, b = estimate(name, straight).advantage, estimate(name, shuffled).advantage
    for position, original in enumerate(order):
        assert_close(b[shuffled.trajectory == position], a[straight.trajectory == original], 1e-9)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@few
@given(batch=batches, seed=st.integers(0, 99))
def test_the_order_of_rows_does_not_matter(name: str, batch: Batch, seed: int) -> None:
    table = batch_table(batch)
    order = np.random.default_rng(seed).permutation(len(table))
    columns = ("group", "trajectory", "turn", "reward", "anchor", "is_valid", "num_tokens", "role", "invocation")
    rows = {
        key: getattr(table, key)[order]
        for key in (
            *columns,
            "value",
            "q_value",
            "info_gain",
            "is_truncated",
            "is_patched",
            "is_faulty",
            "answer",
            "segment",
        )
    }
    assert table.part_values is not None and table.token_value is not None and table.token_entropy is not None
    tokens = np.concatenate([np.flatnonzero(token_rows(table) == row) for row in order])
    again = TurnTable.from_rows(
        **rows,
        part_names=table.part_names,
        part_roles=table.part_roles,
        part_values=table.part_values[order],
        group_keys=table.group_keys,
        token_value=table.token_value[tokens],
        token_entropy=table.token_entropy[tokens],
    )
    assert_close(estimate(name, again).advantage, estimate(name, table).advantage, 1e-9)


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
@few
@given(batch=batches, shift=st.integers(-4, 4))
def test_a_constant_reward_changes_nothing(name: str, batch: Batch, shift: int) -> None:
    plain, shifted = batch_table(batch), batch_table(batch, shift=shift)
    if name == "gigpo":  # a row that is a whole group keeps its score, as in the reference
        assume(int(np.bincount(plain.group)[np.unique(plain.group)].min()) > 1)
    # a constant added at the end of episodes reaches earlier turns undiscounted only with gamma 1
    a, b = (estimate(name, table, gamma=1.0).advantage for table in (plain, shifted))
    assert_close(a, b, 1e-6)


@few
@given(batch=batches, shift=st.floats(-2, 2))
def test_igpo_separate_ignores_a_constant_gain(batch: Batch, shift: float) -> None:
    table = batch_table(batch)
    assert table.info_gain is not None
    assert_close(
        estimate("igpo", table.with_columns(info_gain=table.info_gain + shift)).advantage,
        estimate("igpo", table).advantage,
        1e-6,
    )


@few
@given(batches)
def test_rae_moves_with_a_constant(batch: Batch) -> None:
    a, b = estimate("rae", batch_table(batch)), estimate("rae", batch_table(batch, shift=1.0))
    assert not np.allclose(a.advantage, b.advantage)


@pytest.mark.parametrize("name", SCALE_INVARIANT)
@few
@given(batch=batches, scale=st.sampled_from([0.5, 2.0, 8.0]))
def test_a_scale_changes_nothing_but_for_eps(name: str, batch: Batch, scale: float) -> None:
    if name == "gigpo":  # a lone row keeps its score
        groups = [group for group, _ in batch]
        assume(all(groups.count(group) > 1 for group in groups))
    plain, scaled = batch_table(batch), batch_table(batch, scale=scale)
    np.testing.assert_allclose(estimate(name, plain).advantage, estimate(name, scaled).advantage, atol=1e-3, rtol=1e-3)


@few
@given(batch=batches, scale=st.sampled_from([0.5, 2.0, 8.0]))
def test_gdpo_ignores_a_scale_before_its_batch_norm(batch: Batch, scale: float) -> None:
    """After it not: where parts cancel, the batch norm blows their remainder of eps up. That is the published form."""
    a, b = (gdpo(batch_table(batch, scale=s), batch_norm="off").advantage for s in (1.0, scale))
    assert_close(a, b, 1e-3)


@pytest.mark.parametrize("options", [TokenGaeOptions(), BiLevelGaeOptions(), TurnGaeOptions()])
@few
@given(batch=batches)
def test_whitening_leaves_the_critics_targets_alone(options: Any, batch: Batch) -> None:
    run, table = ESTIMATORS[options.kind].run, batch_table(batch)
    if len(table) > 1:
        white, _ = run({"table": table}, options, {})
        raw, _ = run({"table": table}, replace(options, whitened=False), {})
        assert_close(white.return_to_go, raw.return_to_go, 1e-9)


@few
@given(batches)
def test_salt_preserves_the_sum(batch: Batch) -> None:
    table = batch_table(batch)
    advantage = estimate("grpo", table).advantage
    merged = salt(table, advantage).advantage
    assert_close(merged.sum(), advantage.sum(), 1e-9)
    assert_close(np.bincount(table.group, merged), np.bincount(table.group, advantage), 1e-9)


@few
@given(batches)
def test_empg_is_centred_and_aepo_keeps_turns_without_tokens_apart(batch: Batch) -> None:
    table = batch_table(batch)
    advantage = estimate("grpo", table).advantage
    assert_close(empg(table, advantage).advantage.mean(), 0, 1e-9)
    tokens = aepo_advantage(table, advantage).token_advantage
    assert tokens is not None and table.num_tokens is not None
    assert len(tokens) == table.num_tokens.sum()


@few
@given(episode=episodes, cuts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=4))
def test_every_turn_of_a_tree_is_weighted_once(episode: Any, cuts: list[tuple[int, int]]) -> None:
    parents = [-1, *(min(parent, index) for index, (parent, _) in enumerate(cuts))]
    branches = [0, *(min(cut, len(episode)) for _, cut in cuts)]
    num_turns = len(episode)
    table = batch_table([(0, episode)] * len(parents)).with_columns(
        parent=np.repeat(parents, num_turns), branch_turn=np.repeat(branches, num_turns)
    )
    advantage = np.repeat(np.arange(len(parents), dtype=np.float64), num_turns)
    hard = shared_prefix(table, advantage)
    assert hard.loss_weight is not None
    seen = {owner_of(i, t, parents, branches) for i in range(len(parents)) for t in range(num_turns)}
    assert hard.loss_weight.sum() == len(seen)


def owner_of(trajectory: int, turn: int, parents: list[int], branches: list[int]) -> tuple[int, int]:
    """Who took the turn, step by step up the tree."""
    while parents[trajectory] >= 0 and turn < branches[trajectory]:
        trajectory = parents[trajectory]
    return trajectory, turn


# ------------------------------------------------------------------------------------------- layout of the episodes


def episode_of(turns: Any, per_turn: bool) -> Trajectory:
    """An episode as one segment, or with a segment per turn."""
    made = [
        Turn(
            index=index,
            prompt_ids=(1, 2),
            completion=Completion(
                token_ids=(3,) * n, logprobs=(-0.1,) * n, policy_versions=(0,) * n, finish_reason=FinishReason.STOP
            ),
            action=Message("assistant", f"act {a}"),
            reward_parts=(RewardPart("outcome", r),),
            state_key=s,
        )
        for index, (r, s, a, n) in enumerate(turns)
    ]
    segments = tuple(Segment((turn,)) for turn in made) if per_turn else (Segment(tuple(made)),)
    return Trajectory(
        task=Task(id="t", split="train", seed=0), env_id="e", status=Status.COMPLETED, segments=segments, seed=0
    )


def grouped(batch: Batch, per_turn: bool) -> list[TrajectoryGroup]:
    """The batch's groups."""
    return [
        TrajectoryGroup(
            ordinal=group,
            task=Task(id=f"t{group}", split="train", seed=group),
            trajectories=tuple(episode_of(turns, per_turn) for g, turns in batch if g == group),
        )
        for group in sorted({group for group, _ in batch})
    ]


LAYOUTS = (
    "grpo",
    "rloo",
    "opo",
    "opmd",
    "mc_grpo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gigpo",
    "hgpo",
    "supo",
    "gdpo",
    "ui_s1",
)


@pytest.mark.parametrize("name", LAYOUTS)
@few
@given(batch=batches)
def test_a_row_per_episode_or_per_turn_gives_the_same(name: Any, batch: Batch) -> None:
    config = CreditConfig(estimator=name)
    concat, per_turn = (assign_credit(grouped(batch, layout), config) for layout in (False, True))
    assert concat == per_turn


@few
@given(batches)
def test_a_table_seen_by_trajectory(batch: Batch) -> None:
    table = batch_table(batch)
    view = trajectories(table)
    assert view.num_turns.tolist() == [len(turns) for _, turns in batch]
    assert view.group.tolist() == [group for group, _ in batch]
    assert table.turn[view.first].tolist() == [0] * len(batch)
    expected: list[Floats] = [np.float64(sum(r for r, *_ in turns)) for _, turns in batch]  # type: ignore[misc]
    assert_close(per_trajectory(table, table.reward), expected, 1e-9)
