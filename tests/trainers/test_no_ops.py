"""Settings under which a component can change nothing are refused or warned of when they are read."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym.credit.component import credit_table
from agentgym.credit.config import CreditConfig
from agentgym.credit.modulators.salt import SaltOptions
from agentgym.credit.selections.downsampling import D3sOptions, PodsOptions, RocOptions
from agentgym.credit.selections.filters import DynamicSamplingOptions
from agentgym.credit.shapers.gating import GraOptions
from agentgym.credit.shapers.penalties import InvalidCallOptions, OverlongOptions
from agentgym.credit.shapers.tool_use import ToolBonusOptions
from agentgym.errors import ConfigError
from agentgym.trainers.config.idle import idle_ranks, idle_settings
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.losses import options as of
from agentgym.trainers.losses.component import loss_table
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.recipes import RECIPES, load_recipe

CREDIT: list[tuple[dict[str, Any], str]] = [
    ({"shapers": (InvalidCallOptions(penalty=0.0),), "estimator": "rloo"}, "invalid_call: penalty is 0"),
    ({"shapers": (OverlongOptions(factor=0.0),)}, "overlong_penalty: factor is 0"),
    ({"shapers": (ToolBonusOptions(bonus=0.0),)}, "tool_bonus: bonus is 0"),
    ({"shapers": (GraOptions(priorities={"outcome": 0, "process": 0}),)}, "g_ra: all roles have one priority"),
    ({"selections": (D3sOptions(start_share=1.0),)}, "d3s: sample_share and start_share are 1"),
]


@pytest.mark.parametrize(("keys", "reason"), CREDIT)
def test_credit_without_effect_is_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*so it changes nothing; leave it out"):
        CreditConfig(**keys)


@pytest.mark.parametrize(
    ("keys", "size", "reason"),
    [
        ({"modulators": (SaltOptions(),), "estimator": "turn_gae"}, 1, "salt compares the members of a group"),
        ({"selections": (DynamicSamplingOptions(),), "estimator": "spo"}, 1, "dynamic_sampling compares the members"),
        ({"selections": (PodsOptions(keep=4),)}, 4, "pods keeps 4 members of 4, so it drops none"),
        ({"selections": (RocOptions(keep=8),)}, 4, "roc keeps 8 members and drops groups of fewer"),
    ],
)
def test_groups_of_the_wrong_size_are_refused(keys: dict[str, Any], size: int, reason: str) -> None:
    config = CreditConfig(**keys)
    with pytest.raises(ConfigError, match=reason):
        config.check_group_size(size)
    config.check_group_size(8 if "roc" in reason else 9)


def test_gigpo_without_its_step_part_warns() -> None:
    (warning,) = CreditConfig(estimator="gigpo", step_weight=0.0).warnings
    assert "as grpo does" in warning


@pytest.mark.parametrize("part", [of.KlOptions(coef=0), of.EntropyOptions(coef=0), of.EpoOptions(coef=0)])
def test_coefficients_of_0_are_refused(part: Any) -> None:
    with pytest.raises(ConfigError, match=f"{part.kind}: coef is 0, so it changes nothing; leave it out"):
        LossConfig(regularisers=(part,))


def test_what_compares_with_the_first_update_needs_a_second() -> None:
    llds = of.LldsOptions()
    with pytest.raises(ConfigError, match="llds acts from a step's second update on, and there is one"):
        LossConfig(regularisers=(llds,))
    for config in (
        LossConfig(regularisers=(llds,), num_epochs=2),
        LossConfig(regularisers=(llds,), num_updates=2),
        LossConfig(regularisers=(llds,), mode="bypass", corrections=()),
    ):
        assert config.regulariser("llds") == llds


def test_a_gate_that_cannot_act_is_warned_of() -> None:
    recipe = load_recipe("tiny")
    said = "with one update per step every ratio is 1, so the gate of {} never acts"

    def warned(*overrides: str, gate: str) -> bool:
        return any(said.format(gate) in warning for warning in apply_overrides(recipe, overrides).warnings)

    assert warned("loss.kind=gspo", "credit.estimator=grpo", gate="gspo")
    assert warned("loss.clip_high=0.4", gate="ppo_clip")
    assert not warned(gate="ppo_clip")
    assert not warned("loss.kind=dapo", "loss.num_epochs=2", gate="dapo")
    assert not warned("loss.kind=dapo", "loss.mode=bypass", "loss.corrections=[]", gate="dapo")


@pytest.mark.parametrize("component", (*credit_table(), *loss_table()), ids=lambda component: component.name)
def test_published_settings_are_not_idle(component: Any) -> None:
    made = component.options and component.options()
    assert made is None or not made.idle(), f"the defaults of {component.name} do nothing"


@pytest.mark.parametrize(
    ("chosen", "switch", "said"),
    [
        (
            "model.lora.alpha=64",
            "model.lora.rank=8",
            "model.lora.alpha=64 has no effect without model.lora.rank",
        ),
        ("pipeline.max_staleness=2", "pipeline.mode=async", "without pipeline.mode=async"),
        (
            "cluster.num_engines=2",
            'cluster.address="auto"',
            "num_engines=2 has no effect without cluster.address",
        ),
        ("judge.votes=3", 'judge.model="openai:http://127.0.0.1:1/v1?model=m"', "without judge.model"),
        ("sft.keep=best", 'sft.runs=["runs/first"]', "sft.keep=best has no effect without sft.runs or sft.teacher"),
        ("sft.mix.schedule=linear", "sft.mix.weight=0.1", "schedule=linear has no effect without sft.mix.weight"),
        ("harness.max_calls=9", 'harness.name="smolagents"', "without harness.name"),
        ("context.window_tokens=99", "context.policy=window", "without context.policy=window or summarise"),
        ("critic.lr=0.1", "credit.estimator=turn_gae", "critic.lr=0.1 has no effect without an estimator that has"),
        (
            "mixture.by=progress",
            'envs=[{"id": "agentgym/GuessNumber-v0"}]',
            "mixture.by=progress has no effect without envs",
        ),
        (
            "loss.norm_length=5",
            "loss.aggregation=seq-mean-token-sum-norm",
            "without loss.aggregation=seq-mean-token-sum",
        ),
        (
            "loss.aggregation_unit=turn",
            "loss.aggregation=seq-mean-token-mean",
            "aggregation_unit=turn has no effect without a mean over sequences",
        ),
    ],
)
def test_settings_of_what_is_off_are_named(chosen: str, switch: str, said: str) -> None:
    (line,) = apply_overrides(load_recipe("tiny"), [chosen]).warnings
    assert said in line
    assert not idle_settings(apply_overrides(load_recipe("tiny"), [chosen, switch]))


def test_sizes_of_a_model_from_scratch_are_named_beside_a_path() -> None:
    (line,) = apply_overrides(load_recipe("smollm2-guess"), ["model.num_layers=2", "model.splits=words"]).warnings
    assert line == (
        "model.num_layers=2, model.splits=words have no effect without a model from scratch (an empty model.path)"
    )


def test_a_seed_of_sampling_and_updates_without_groups_are_named() -> None:
    seed, updates = apply_overrides(load_recipe("tiny"), ["sampling.seed=5", "loss.num_updates=20"]).warnings[::-1]
    assert seed == "sampling.seed=5 has no effect: the seed of each turn follows from seed"
    assert updates.startswith("loss.num_updates=20 makes 8 updates at most")
    by_tokens = ["loss.num_updates=20", "loss.minibatch=tokens"]
    assert apply_overrides(load_recipe("tiny"), by_tokens).warnings == ()


def test_settings_of_ranks_are_named_where_there_is_one() -> None:
    one = load_recipe("tiny")
    assert idle_ranks(one) == ""
    note = idle_ranks(apply_overrides(one, ["ranks.context_size=2", "ranks.rollouts=first"]))
    assert note.startswith("note: ranks.rollouts=first, ranks.context_size=2: this run has one rank")


def test_an_environment_of_a_mixture_may_use_them() -> None:
    envs = 'envs=[{"name": "a", "id": "agentgym/GuessNumber-v0", "context": {"policy": "window"}}]'
    assert not idle_settings(apply_overrides(load_recipe("tiny"), ["context.num_turns=5", envs]))


@pytest.mark.parametrize("name", tuple(RECIPES))
def test_no_recipe_has_settings_without_effect(name: str) -> None:
    assert idle_settings(load_recipe(name)) == ()
