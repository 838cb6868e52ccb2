"""Every composition rule refuses or warns, with its number and its reason, and lets what is sound pass."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from testkit.credit_tables import bandits, table_of

from agentgym.credit import rules
from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.estimators.gigpo import GigpoOptions
from agentgym.credit.estimators.group_relative import SupoOptions
from agentgym.credit.estimators.hgpo import HgpoOptions
from agentgym.credit.modulators.branches import R3lOptions, SharedPrefixOptions
from agentgym.credit.modulators.entropy import AepoOptions, EmpgOptions
from agentgym.credit.modulators.salt import SaltOptions
from agentgym.credit.selections.downsampling import D3sOptions, PodsOptions, RocOptions
from agentgym.credit.selections.filters import DynamicSamplingOptions, OverlongMaskOptions, VoidTurnsOptions
from agentgym.credit.shapers.attempts import SpiralSplitOptions
from agentgym.credit.shapers.gating import GraOptions
from agentgym.credit.shapers.information_gain import InformationGainOptions
from agentgym.credit.shapers.penalties import InvalidCallOptions
from agentgym.credit.shapers.tool_use import ToolBonusOptions
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"estimator": "gigpo", "options": HgpoOptions()}, r"two estimators .*\(composition rule 1\)"),
    (
        {"estimator": "gdpo", "selections": (DynamicSamplingOptions(),)},
        r"set its metric to 'components' \(composition rule 8\)",
    ),
    (
        {"estimator": "grpo", "selections": (DynamicSamplingOptions(metric="return"),)},
        r"summed 'return' .*\(composition rule 8\)",
    ),
    ({"estimator": "igpo"}, r"reference answer: add the shaper .*\(composition rule 10\)"),
    (
        {"estimator": "supo", "options": SupoOptions(statistics_unit="segment")},
        r"once per context window.*\(composition rule 13\)",
    ),
    (
        {"modulators": (SharedPrefixOptions(attribution="hard", count="replicate"),)},
        r"averaged and counted once .*\(composition rule 14\)",
    ),
    (
        {"modulators": (SharedPrefixOptions(attribution="soft", count="once"),)},
        r"composition rule 14",
    ),
    ({"estimator": "grpo", "shapers": (SpiralSplitOptions(),)}, r"pools the players .*\(composition rule 15\)"),
    (
        {"selections": (VoidTurnsOptions(statistics="kept"),)},
        r"keeps its reward in the statistics.*\(composition rule 17\)",
    ),
    ({"modulators": (EmpgOptions(), SaltOptions())}, r"must come before empg \(order of components\)"),
    ({"modulators": (AepoOptions(), EmpgOptions())}, r"put it last \(order of components\)"),
    ({"estimator": "token_gae", "modulators": (SaltOptions(),)}, r"use an estimator per turn \(order of components\)"),
    ({"shapers": (GraOptions(), GraOptions())}, "g_ra is named twice"),
    ({"invalid_penalty": 0.1, "shapers": (InvalidCallOptions(),)}, "are the same thing"),
    ({"estimator": "rloo", "gamma": 0.5}, "gamma is a key of dr_mas, gigpo, grpo, hgpo; estimator 'rloo'"),
    ({"estimator": "hgpo", "step_weight": 2.0}, "step_weight is a key of gigpo, ui_s1"),
    ({"estimator": "grpo", "step_weight": 2.0}, "set it back to 1.0"),
    ({"gamma": 1.5}, "gamma must be between 0 and 1"),
    ({"invalid_penalty": -1.0}, "invalid_penalty must be at least 0"),
]

WARNED: list[tuple[dict[str, Any], str]] = [
    ({"selections": (PodsOptions(statistics="full"),)}, "composition rule 9"),
    ({"selections": (RocOptions(statistics="full"),)}, "composition rule 9"),
    ({"selections": (OverlongMaskOptions(statistics="kept"),)}, "composition rule 9"),
    ({"estimator": "igpo", "shapers": (InformationGainOptions(), GraOptions())}, "composition rule 11"),
    ({"estimator": "grpo", "shapers": (ToolBonusOptions(per="call"),)}, "composition rule 12"),
    ({"estimator": "archer", "shapers": (GraOptions(),)}, "leave g_ra out (one-step targets)"),
]

SOUND: list[dict[str, Any]] = [
    {},
    {"estimator": "grpo", "selections": (DynamicSamplingOptions(),)},
    {"estimator": "gdpo", "selections": (DynamicSamplingOptions(metric="components"),)},
    {"estimator": "gigpo", "selections": (DynamicSamplingOptions(metric="return"), VoidTurnsOptions())},
    {"estimator": "grpo", "shapers": (ToolBonusOptions(),)},
    {"estimator": "igpo", "shapers": (InformationGainOptions(),)},
    {"estimator": "rae", "shapers": (SpiralSplitOptions(),)},
    {"estimator": "rloo", "invalid_penalty": 0.1},
]


def rules_said(config: CreditConfig) -> list[str]:
    return [warning for warning in config.warnings if "is experimental" not in warning]


@pytest.mark.parametrize(("keys", "reason"), REFUSED)
def test_what_cannot_be_is_refused_when_the_configuration_is_made(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        CreditConfig(**keys)


@pytest.mark.parametrize(("keys", "reason"), WARNED)
def test_what_is_dangerous_is_said(keys: dict[str, Any], reason: str) -> None:
    (warning,) = rules_said(CreditConfig(**keys))
    assert reason in warning


@pytest.mark.parametrize("keys", SOUND)
def test_what_is_sound_passes_in_silence(keys: dict[str, Any]) -> None:
    assert rules_said(CreditConfig(**keys)) == []


def test_a_gate_that_leaves_process_alone_may_meet_the_gain() -> None:
    gate = GraOptions(priorities={"outcome": 0, "format": 1})
    assert rules_said(CreditConfig(estimator="igpo", shapers=(InformationGainOptions(), gate))) == []


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "gigpo", "igpo", "gdpo", "mc_grpo", "hgpo"])
def test_rule_2_a_group_of_one_has_no_company(estimator: Any) -> None:
    shapers = (InformationGainOptions(),) if estimator == "igpo" else ()
    config = CreditConfig(estimator=estimator, shapers=shapers)
    config.check_group_size(2)
    with pytest.raises(ConfigError, match=r"group_size must be at least 2, got 1.*\(composition rule 2\)"):
        config.check_group_size(1)


@pytest.mark.parametrize(
    "estimator", ["reinforce_pp", "spo", "rae", "token_gae", "poad", "turn_gae", "bi_level_gae", "archer"]
)
def test_rule_2_estimators_without_groups_take_one(estimator: Any) -> None:
    CreditConfig(estimator=estimator).check_group_size(1)


def test_rule_7_start_states_that_differ_are_an_error() -> None:
    table = TurnTable.from_lists(rewards=[[1], [0]], states=[["id 1"], ["id 2"]], group_of_trajectory=[0, 0])
    (warning,) = credit_turns(table, CreditConfig()).warnings
    assert "history, counters or random ids" in warning
    assert warning.endswith("(composition rule 7)")
    with pytest.raises(ConfigError, match="composition rule 7"):
        rules.refuse_errors(rules.anchors(0.0, starts_agree=False))


def test_rule_7_few_shared_states_are_a_warning() -> None:
    states: list[list[Hashable]] = [["s", *[(i, t) for t in range(19)]] for i in (0, 1)]
    table = TurnTable.from_lists(rewards=[[0] * 20] * 2, states=states, group_of_trajectory=[0, 0])
    (warning,) = credit_turns(table, CreditConfig(estimator="hgpo")).warnings
    assert warning.startswith("only 5% of turns share their state")
    assert credit_turns(table, CreditConfig(estimator="grpo")).warnings == ()


def test_rule_7_leaves_similarity_alone() -> None:
    table = bandits(1, 0, observation=["a long text", "a long test"])
    config = CreditConfig(options=GigpoOptions(anchors="similarity"))
    assert credit_turns(table, config).warnings == ()


FINDINGS = [
    (rules.rollout_correction("bypass", ["token_tis"]), "E", "composition rule 3"),
    (rules.rollout_correction("decoupled", []), "W", "composition rule 3"),
    (rules.bounded_weights("ppo_clip", "bypass", is_bounded=False, may_clip=True), "W", ""),
    (rules.bounded_weights("gspo", "bypass", is_bounded=False, may_clip=False), "W", ""),
    (rules.ratio_level("gspo", "sequence", "token"), "E", "composition rule 5"),
    (rules.ratio_level("gspo", "turn", "token"), "E", "composition rule 5"),
    (rules.ratio_level("gmpo", "sequence", "turn"), "E", "composition rule 5"),
    (rules.one_gate("sapo", ["ppo_clip"]), "E", "composition rule 6"),
    (rules.one_gate("sapo", ["decoupled"]), "E", "composition rule 6"),
    (rules.one_gate("cispo", ["dual_clip"]), "E", "composition rule 6"),
    (rules.reference_answers(has_gain=True, has_reference=False), "E", "composition rule 10"),
    (
        rules.reference_answers(has_gain=True, has_reference=True, is_sampling_policy=False),
        "W",
        "composition rule 10",
    ),
    (rules.entropy_signs(["empg"], ["entropy"]), "W", "composition rule 18"),
    (rules.baseline_once("grpo", "vcpo", subtracts_mean=True), "E", "composition rule 19"),
]


@pytest.mark.parametrize(("found", "severity", "rule"), FINDINGS)
def test_rules_about_losses_and_corrections(found: rules.Findings, severity: str, rule: str) -> None:
    (finding,) = found
    assert (finding.severity, finding.rule) == (severity, rule)
    assert len(finding.message) > 30
    if severity == "E":
        with pytest.raises(ConfigError, match=rule):
            rules.refuse_errors(found)
    else:
        assert rules.refuse_errors(found) == (str(finding),)


PASSES = [
    rules.rollout_correction("bypass", []),
    rules.rollout_correction("decoupled", ["token_tis"]),
    rules.bounded_weights("ppo_clip", "decoupled", is_bounded=False, may_clip=True),
    rules.bounded_weights("dapo", "bypass", is_bounded=True, may_clip=True),
    rules.ratio_level("gspo", "turn", "turn"),
    rules.ratio_level("gspo", "sequence", "trajectory"),
    rules.ratio_level("ppo_clip", "token", "token"),
    rules.one_gate("ppo_clip", ["dual_clip"]),
    rules.one_gate("cispo", []),
    rules.entropy_signs(["salt"], ["entropy"]),
    rules.entropy_signs(["empg"], []),
    rules.baseline_once("reinforce_pp", "vcpo", subtracts_mean=False),
    rules.reference_answers(has_gain=True, has_reference=True),
]


@pytest.mark.parametrize("found", PASSES)
def test_what_goes_together_is_not_spoken_of(found: rules.Findings) -> None:
    assert found == ()


def test_rule_17_a_void_trajectory_stays_in_the_statistics() -> None:
    table = bandits(1, 0, 1, 0, is_void=[False, False, False, True])
    with_filter = credit_turns(table, CreditConfig(estimator="grpo", selections=(VoidTurnsOptions(),)))
    without = credit_turns(table, CreditConfig(estimator="grpo"))
    assert with_filter.advantage.tolist() == without.advantage.tolist()


def test_rule_13_segments_do_not_count() -> None:
    one = table_of([[0, 0, 1], [0]], segment=[0, 0, 0, 0], is_truncated=[False] * 4)
    three = one.with_columns(segment=[0, 1, 2, 0])
    config = CreditConfig(estimator="supo")
    assert credit_turns(one, config).advantage.tolist() == credit_turns(three, config).advantage.tolist()


def test_several_errors_are_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"composition rule 10.*; .*composition rule 8"):
        CreditConfig(estimator="igpo", selections=(DynamicSamplingOptions(),))


def test_modulators_that_mask_may_follow_others() -> None:
    config = CreditConfig(estimator="grpo", modulators=(SaltOptions(), EmpgOptions(), R3lOptions()))
    assert rules_said(config) == []
    assert rules_said(CreditConfig(selections=(D3sOptions(),))) == []
