"""The pipeline as a whole: the published end-to-end numbers, configurations on disk, columns, edges of batches."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from testkit.credit_tables import assert_close, bandits, batch_table, table_of

from agentgym.credit.columns import turn_table
from agentgym.credit.component import ESTIMATORS, FAMILIES, SELECTIONS, CreditComponent, credit_table
from agentgym.credit.compose import CreditConfig, assign_credit, credit_groups, credit_turns
from agentgym.credit.modulators.branches import R3lOptions, SharedPrefixOptions
from agentgym.credit.modulators.entropy import AepoOptions, EmpgOptions
from agentgym.credit.modulators.salt import SaltOptions
from agentgym.credit.selections.downsampling import D3sOptions, PodsOptions
from agentgym.credit.selections.filters import OverlongMaskOptions, VoidTurnsOptions
from agentgym.credit.shapers.gating import GraOptions
from agentgym.credit.shapers.information_gain import InformationGainOptions
from agentgym.credit.shapers.penalties import InvalidCallOptions, OverlongOptions
from agentgym.credit.shapers.tool_use import OtcOptions, ToolBonusOptions, tool_bonus
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError, UnknownNameError
from agentgym.types import (
    Completion,
    FinishReason,
    Message,
    RewardPart,
    RewardRole,
    Segment,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

HERE = Path(__file__).parent
CONFIGS: TypeAdapter[CreditConfig] = TypeAdapter(CreditConfig)


def config_with(component: CreditComponent) -> CreditConfig:
    """A configuration that has the component, with as little else as it needs."""
    if component.family == "estimator":
        shapers = (InformationGainOptions(),) if component.name == "igpo" else ()
        return CreditConfig(estimator=component.name, shapers=shapers)
    assert component.options is not None
    estimator = "rae" if component.name == "spiral_split" else "grpo"
    made: dict[str, Any] = {f"{component.family}s": (component.options(),)}
    return CreditConfig(estimator=estimator, **made)


ALL = [component for family in FAMILIES.values() for component in family.values()]
ALL_IDS = [component.name for component in ALL]


# ------------------------------------------------------------------------------------------------------ end to end


def test_end_to_end_gating_gigpo() -> None:
    """Section 8.1, steps 1 to 3: gated rewards, returns, advantages."""
    table = TurnTable.from_lists(
        rewards=[[0, 0], [0, 0]], states=[["s0", "s1"], ["s0", "s0"]], group_of_trajectory=[0, 0]
    ).with_parts(outcome=("outcome", [[0, 1], [0, 0]]), steps=("process", [[0.1, 0.1], [0.1, -0.1]]))
    config = CreditConfig(norm="mean_norm", shapers=(GraOptions(thresholds=(0.5,)),))
    result = credit_turns(table, config)
    assert_close(result.table.reward, [0.1, 1.1, 0, 0])
    assert_close(result.return_to_go, [1.145, 1.1, 0, 0])
    assert_close(result.advantage, [1.363333, 0.6, -0.981667, -0.981667])
    assert result.gate_open.tolist() == [True, True, False, False]
    assert result.diagnostics["gate_open_rate"] == 0.5


def test_a_gate_repairs_the_phantom_advantage() -> None:
    """In a group where all failed, shaped rewards alone would set members apart."""
    table = bandits(0, 0).with_parts(outcome=("outcome", [0, 0]), steps=("process", [0.3, 0.1]))
    assert np.abs(credit_turns(table, CreditConfig(estimator="grpo")).advantage).min() > 0.5
    gated = credit_turns(table, CreditConfig(estimator="grpo", shapers=(GraOptions(),)))
    assert gated.advantage.tolist() == [0, 0]
    shares = [credit_turns(table, CreditConfig(estimator="grpo", shapers=s)).diagnostics for s in ((), (GraOptions(),))]
    assert [share["phantom_share"] for share in shares] == [1, 0]
    assert [share["zero_advantage_share"] for share in shares] == [0, 1]
    half_flat = credit_turns(bandits(1, 1, 0, 1, groups=[0, 0, 1, 1]), CreditConfig(estimator="grpo"))
    assert_close(half_flat.diagnostics["flat_group_share"], 0.5)


def test_stages_run_in_their_order() -> None:
    columns = {"action": [0, 1, 0, 1], "entropy": [0.1, 0.2, 0.3, 0.4], "is_void": [False] * 3 + [True]}
    table = TurnTable.from_lists(
        rewards=[[0, 1], [0, 0]], states=[["s", "t"], ["s", "t"]], group_of_trajectory=[0, 0]
    ).with_columns(**columns)
    config = CreditConfig(estimator="grpo", modulators=(SaltOptions(), EmpgOptions()), selections=(VoidTurnsOptions(),))
    result = credit_turns(table, config)
    salted = np.array([0, 0.707106, 0, -0.707106])
    assert_close(result.advantage.mean(), 0)
    assert np.sign(result.advantage[1]) == np.sign(salted[1])
    assert result.loss_weight.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "hgpo", "rloo"])
@pytest.mark.parametrize("how", ["key", "shaper"])
def test_a_gate_also_closes_on_the_invalid_call_penalty(estimator: Any, how: str) -> None:
    table = TurnTable.from_lists(
        rewards=[[0, 0], [0, 0]], states=[["a", "b"], ["a", "c"]], group_of_trajectory=[0, 0]
    ).with_parts(solved=("outcome", [[0, 0], [0, 0]]))
    table = replace(table, is_valid=np.array([True, False, True, True]))
    gate = GraOptions(thresholds=(0.5,))
    if how == "key":
        gated = CreditConfig(estimator=estimator, shapers=(gate,), invalid_penalty=0.1)
        open_ = CreditConfig(estimator=estimator, invalid_penalty=0.1)
    else:
        gated = CreditConfig(estimator=estimator, shapers=(InvalidCallOptions(), gate))
        open_ = CreditConfig(estimator=estimator, shapers=(InvalidCallOptions(),))
    assert credit_turns(table, gated).advantage.tolist() == [0.0] * 4  # both failed: nothing to learn
    if estimator != "hgpo":  # which compares the shared first state alone, before the penalty
        assert credit_turns(table, open_).diagnostics["phantom_share"] > 0


def test_the_invalid_call_shaper_is_gigpos_own_penalty() -> None:
    valid = [[True] * 3, [True, True, False], [True] * 2]
    table = TurnTable.from_lists(
        rewards=[[0, 0, 10], [0, 0, 0], [0, 10]],
        states=[["s0", "s1", "s2"], ["s0", "s1", "s1"], ["s0", "s3"]],
        is_valid=valid,
        group_of_trajectory=[0] * 3,
    )
    expected = [6.6125, 10.129167, 3.7625, -12.4125, -9.370833, -9.570833, 7.0875, 3.7625]
    shaper = CreditConfig(norm="mean_norm", shapers=(InvalidCallOptions(penalty=0.1),))
    assert_close(credit_turns(table, shaper).advantage, expected)
    assert_close(credit_turns(table, CreditConfig(norm="mean_norm", invalid_penalty=0.1)).advantage, expected)


def test_the_flat_penalty_works_for_every_estimator() -> None:
    table = TurnTable.from_lists(rewards=[[1], [1]], is_valid=[[False], [True]], group_of_trajectory=[0, 0])
    assert_close(credit_turns(table, CreditConfig(estimator="dr_grpo", invalid_penalty=0.2)).advantage, [-0.1, 0.1])
    assert_close(credit_turns(table, CreditConfig(estimator="rloo", invalid_penalty=0.2)).advantage, [-0.2, 0.2])


def test_weights_of_stages_multiply() -> None:
    table = table_of(
        [[0, 1], [0, 0], [0, 0]],
        parent=[-1, -1, 0, 0, -1, -1],
        branch_turn=[0, 0, 1, 1, 0, 0],
        is_truncated=[False] * 4 + [True] * 2,
    )
    config = CreditConfig(estimator="grpo", modulators=(SharedPrefixOptions(),), selections=(OverlongMaskOptions(),))
    assert credit_turns(table, config).loss_weight.tolist() == [1, 1, 0, 1, 0, 0]


def test_token_advantages_of_left_out_trajectories_are_zero() -> None:
    table = bandits(1, 1, 0, num_tokens=[1, 2, 2], token_entropy=[0.1, 0.2, 0.3, 0.4, 0.5])
    config = CreditConfig(estimator="grpo", modulators=(AepoOptions(),), selections=(PodsOptions(keep=2),))
    result = credit_turns(table, config)
    assert result.token_advantage is not None
    assert result.token_advantage.shape == (5,)
    assert result.token_advantage[1:3].tolist() == [0, 0]
    assert config.granularity == "token"


def test_pivots_survive_subsets() -> None:
    table = bandits(1, 0, 0, 1, parent=[-1, 0, -1, 2], branch_turn=[0, 1, 0, 1])
    config = CreditConfig(estimator="grpo", modulators=(R3lOptions(),), selections=(PodsOptions(keep=3),))
    assert credit_turns(table, config).loss_weight.shape == (4,)


# ------------------------------------------------------------------------------------------- catalogue and settings


def test_the_table_has_every_component_once() -> None:
    names = [(component.name, component.family) for component in credit_table()]
    assert len(set(names)) == len(names) == len(ALL)
    assert list(ESTIMATORS) == sorted(ESTIMATORS)


@pytest.mark.parametrize("component", ALL, ids=ALL_IDS)
def test_every_component_has_its_golden_test(component: CreditComponent) -> None:
    path, _, function = component.test.partition("::")
    assert f"def {function}(" in (HERE.parent.parent / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("component", ALL, ids=ALL_IDS)
def test_reconstructions_say_so_at_start(component: CreditComponent) -> None:
    said = [warning for warning in config_with(component).warnings if f"{component.name} is experimental" in warning]
    assert len(said) == (component.status == "experimental")


@pytest.mark.parametrize("component", ALL, ids=ALL_IDS)
def test_settings_survive_a_file(component: CreditComponent) -> None:
    config = config_with(component)
    if component.family == "estimator" and component.options is not None:
        config = replace(config, options=component.options())
    assert CONFIGS.validate_python(json.loads(json.dumps(asdict(config)))) == config


def test_an_old_file_still_loads() -> None:
    old = {
        "estimator": "gigpo",
        "norm": "mean_std_norm",
        "gamma": 0.95,
        "step_weight": 1.0,
        "statistics_unit": "turn",
        "invalid_penalty": 0.0,
    }
    assert CONFIGS.validate_python(old) == CreditConfig()


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"shapers": [{"kind": "g_ra", "treshold": 1}]}, ("shapers", 0, "treshold")),
        ({"shapers": [{"kind": "salt"}]}, ("shapers", 0)),
        ({"selections": [{"kind": "pods", "keep": "many"}]}, ("selections", 0, "keep")),
        ({"modulators": [{}]}, ("modulators", 0)),
    ],
)
def test_wrong_settings_are_refused_where_they_are(keys: dict[str, Any], where: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        CONFIGS.validate_python(keys)
    assert refused.value.errors()[0]["loc"] == where


def test_settings_out_of_range_are_refused_by_their_component() -> None:
    with pytest.raises(ConfigError, match="pods: keep must be at least 2"):
        PodsOptions(keep=1)
    with pytest.raises(ConfigError, match="overlong_penalty: buffer_tokens"):
        OverlongOptions(max_tokens=10, buffer_tokens=20)
    with pytest.raises(ConfigError, match="g_ra: 2 thresholds for 1 gates: one for each priority but the lowest"):
        GraOptions(thresholds=(0.5, 0.5))


# ---------------------------------------------------------------------------------------------------------- columns


# flow_grpo takes every turn for the main agent's where nothing says otherwise, GraphGPO ends of failures for states of
# their own and a reward without parts for the outcome
READERS = [c for c in ALL if c.columns(c.options and c.options()) and c.name not in ("flow_grpo", "graphgpo")]


@pytest.mark.parametrize("component", READERS, ids=lambda c: c.name)
def test_a_missing_column_is_named_with_who_needs_it(component: CreditComponent) -> None:
    config = config_with(component)
    needed = component.columns(component.options and component.options())
    # a reward without parts is all outcome, so these do without
    if component.name in ("otc", "ufo", "dynamic_sampling"):
        needed = tuple(name for name in needed if name != "part_values")
    for _ in needed:
        with pytest.raises(ConfigError, match=r"needs the columns .*: fill them with TurnTable.with_(columns|parts)"):
            credit_turns(bandits(1, 0), config)


def test_columns_that_are_wrong_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown column 'entropie'; did you mean 'entropy'"):
        bandits(1).with_columns(entropie=[1])
    with pytest.raises(ConfigError, match="column 'entropy' has 2 rows, the table 1"):
        bandits(1, entropy=[1, 2])
    with pytest.raises(ConfigError, match="needs one entry per sampled token"):
        bandits(1, token_value=[1])
    with pytest.raises(UnknownNameError, match=r"supply it with TurnTable\.with_columns"):
        turn_table([], ["entropy"])


def recorded() -> list[TrajectoryGroup]:
    """Two groups with calls, an error, a cut episode and one that the infrastructure spoilt."""
    task = Task(id="t", split="train", seed=0)

    def turn(index: int, name: str, parts: tuple[RewardPart, ...], error: str | None = None) -> Turn:
        completion = Completion(
            token_ids=(1, 2), logprobs=(0.0, 0.0), policy_versions=(0, 0), finish_reason=FinishReason.STOP
        )
        reply = Message("tool", "said", result=ToolResult("said", error_type=error))
        return Turn(
            index=index,
            completion=completion,
            action=Message("assistant", f"<{index}>{name}", (ToolCall(name, {"x": 1}),)),
            replies=(reply,),
            reward_parts=parts,
            state_key=f"s{index}",
        )

    outcome, step = RewardPart("solved", 1.0), RewardPart("step", 0.1, RewardRole.PROCESS)
    first = (turn(0, "look", (step,)), turn(1, "take", (outcome,)))
    second = (turn(0, "look", (step,), error="bad"), turn(1, "drop", ()))
    made = [
        Trajectory(task=task, env_id="e", status=status, segments=tuple(Segment((t,)) for t in turns), seed=0)
        for turns, status in (
            (first, Status.COMPLETED),
            (second, Status.TRUNCATED_TURNS),
            (first, Status.ENV_ERROR),
        )
    ]
    return [TrajectoryGroup(ordinal=0, task=task, trajectories=tuple(made))]


def test_columns_come_from_recorded_episodes() -> None:
    names = ("part_values", "num_calls", "num_errors", "num_tokens", "action", "segment", "is_truncated", "observation")
    table = turn_table(recorded(), (*names, "is_void", "group_keys"))
    assert table.part_names == ("solved", "step")
    assert_close(table.part_values, [[0, 0.1], [1, 0], [0, 0.1], [0, 0]])
    assert table.num_calls is not None and table.num_errors is not None and table.num_tokens is not None
    assert table.num_calls.tolist() == [1] * 4
    assert table.num_errors.tolist() == [0, 0, 1, 0]
    assert table.num_tokens.tolist() == [2] * 4
    assert table.action is not None and table.segment is not None and table.is_truncated is not None
    assert table.action.tolist() == [0, 1, 0, 2]
    assert table.segment.tolist() == [0, 1, 0, 1]
    assert table.is_truncated.tolist() == [False, False, True, True]
    assert table.observation == ("", "said", "", "said")
    assert table.group_keys is not None
    assert table.group_keys[0].startswith("t:")


def test_groups_get_their_credit_with_what_the_trainer_supplies() -> None:
    config = CreditConfig(estimator="grpo", shapers=(GraOptions(),), modulators=(EmpgOptions(),))
    credit = assign_credit(recorded(), config, columns={"entropy": [0.1, 0.2, 0.3, 0.4]})
    assert [len(row) for row in credit[0]] == [2, 2, 0]
    assert [turn.gate_open for row in credit[0] for turn in row] == [True, True, False, False]
    assert [turn.shaped_reward for row in credit[0] for turn in row] == [0.1, 1.0, 0.0, 0.0]


def test_trackers_know_tasks_by_their_content() -> None:
    groups = recorded()
    result = credit_groups(groups, CreditConfig(estimator="spo"), columns={"reward": [0, 1, 0, 0]})
    assert list(result.state.memory["spo"]) == [f"t:{groups[0].task.content_hash}"]


def test_masks_reach_the_turns_credit() -> None:
    config = CreditConfig(estimator="grpo", selections=(OverlongMaskOptions(),))
    credit = assign_credit(recorded(), config)
    assert [turn.loss_weight for row in credit[0] for turn in row] == [1, 1, 0, 0]


# ------------------------------------------------------------------------------------------------------------ edges


def full(batch: Any) -> TurnTable:
    """A batch's table with the columns that only a trainer or a world can supply, too."""
    table = batch_table(batch)
    num_turns = [len(turns) for _, turns in batch]
    return table.with_columns(
        answer_logprobs=[np.zeros((n, 1)) for n in num_turns],
        progress=np.zeros(len(table)),
        player_outcome=np.zeros(len(table)),
        answer=np.zeros(len(table), dtype=np.int64),
        parent=np.full(len(table), -1),
        branch_turn=np.zeros(len(table), dtype=np.int64),
        observation=["same"] * len(table),
    )


@pytest.mark.parametrize("component", ALL, ids=ALL_IDS)
def test_an_empty_batch_is_no_error(component: CreditComponent) -> None:
    result = credit_turns(full([]), config_with(component))
    assert (len(result.advantage), len(result.loss_weight), result.warnings) == (0, 0, ())


SAME = [(0, [(0.5, "a", 1, 2), (0.0, "b", 1, 2)])]
ABSOLUTE = (
    "archer",
    "asymre",
    "bi_level_gae",
    "compaction_gae",
    "poad",
    "rae",
    "reinforce_pp",
    "returns",
    "spiral_split",
    "token_gae",
    "turn_gae",
    "r3l_pivot",
    "empg",
    "spa",
    "ui_s1",
    "w_reinforce",
)
"""Components that do not compare members, or, as UI-S1's released code does, each turn with all turns of its group:
equal members may all have the same advantage, and it need not be 0."""


@pytest.mark.parametrize("component", [c for c in ALL if c.name not in ABSOLUTE], ids=lambda c: c.name)
def test_members_that_did_the_same_get_nothing(component: CreditComponent) -> None:
    result = credit_turns(full(SAME * 3), config_with(component))
    assert_close(result.advantage, np.zeros(6), 1e-6)


LONE = ("asymre", "gigpo", "graphgpo", "igpo", "reinforce_pp_baseline", "ui_s1")
"""GiGPO, GraphGPO and UI-S1 keep the score of a group that is one row, as GiGPO's and UI-S1's references do; IGPO needs
two turns to have a gain, and one token cannot be whitened. AsymRE's baseline is below the return of a lone episode,
too."""


@pytest.mark.parametrize("name", [n for n, c in ESTIMATORS.items() if c.compares_groups and n not in LONE])
def test_a_group_of_one_gets_nothing(name: str) -> None:
    config = config_with(ESTIMATORS[name])
    assert_close(credit_turns(full([(0, [(1.0, "a", 0, 3)])]), config).advantage, [0])


def test_every_component_can_run_on_the_same_batch() -> None:
    batch = [(0, [(0.5, "a", 1, 2), (0.0, "b", 2, 1)]), (0, [(1.0, "a", 0, 1)]), (1, [(0.0, "c", 1, 1)] * 3)]
    for component in ALL:
        result = credit_turns(full(batch), config_with(component))
        assert np.isfinite(result.advantage).all(), component.name
        assert result.state.step == 1


def test_curricula_follow_the_step() -> None:
    table = bandits(0, num_calls=[1])
    config = CreditConfig(estimator="turn_gae", shapers=(ToolBonusOptions(),))
    table = table.with_columns(value=[0.0], num_tokens=[1])
    with pytest.raises(ConfigError, match="at least two units"):  # one turn cannot be whitened
        credit_turns(table, config)
    rewards = [tool_bonus(table, step, config.shapers[0]).table.reward[0] for step in (0, 100, 200)]
    assert_close(rewards, [0.05, 0.025, 0])


def test_otc_and_d3s_take_their_memory_from_the_state() -> None:
    table = bandits(1, 1, num_calls=[3, 2], group_keys=["t"])
    first = credit_turns(table, CreditConfig(estimator="grpo", shapers=(OtcOptions(),)))
    assert first.state.memory["otc"] == {"t": 2}
    assert {c.name for c in SELECTIONS.values() if c.is_after} == {D3sOptions().kind}
