"""Overrides: what can be set, and one clear line for what cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.errors import ConfigError, CorruptDataError, UnknownNameError, UsageError
from agentgym.trainers.config.overrides import apply_overrides, from_dict, load_config, save_config, to_dict
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.optimizer import OptimizerConfig, learning_rate
from agentgym.trainers.recipes import RECIPES, load_recipe


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_sound_and_survives_its_saved_copy(name: str, tmp_path: Path) -> None:
    config = load_recipe(name)
    assert config.recipe == name
    save_config(config, tmp_path / "config.json")
    assert load_config(tmp_path / "config.json") == config
    assert from_dict(to_dict(config)) == config


def test_overrides_reach_every_level() -> None:
    config = apply_overrides(
        load_recipe("tiny"),
        ["seed=3", "group.group_size=6", "env.kwargs.num_receptacles=5", "credit.estimator=grpo", "optimizer.lr=1e-3"],
    )
    assert (config.seed, config.group.group_size, config.credit.estimator) == (3, 6, "grpo")
    assert config.env.kwargs == {"num_receptacles": 5}
    assert config.optimizer.lr == 1e-3


def test_keys_of_a_group_that_was_replaced_can_be_set() -> None:
    group = ('model={"hidden_size": 32, "lora": {"rank": 2}}', "model.num_layers=3", "model.lora.alpha=7")
    model = apply_overrides(load_recipe("tiny"), group).model
    assert (model.hidden_size, model.num_layers, model.lora.rank, model.lora.alpha) == (32, 3, 2, 7)
    assert model.vocab_size == ModelConfig().vocab_size, "what the group leaves out has its default"


def test_a_saved_configuration_may_have_keys_of_another_version(tmp_path: Path) -> None:
    config = load_recipe("tiny")
    tree = to_dict(config)
    tree["group"]["a_key_of_another_version"] = 1
    (tmp_path / "config.json").write_text(json.dumps(tree))
    assert load_config(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("group.group_sise=4", "did you mean 'group.group_size'"),
        ("grup.group_size=4", "unknown key"),
        ("group.group_size=four", "group.group_size: .*integer.*'four'"),
        ("group.group_size=1", "min_valid must be between 1 and group_size"),
        ("credit.estimator=ppo", "unknown estimator 'ppo'; did you mean 'spo'"),
        ("sampling.top_p=0.9", "top_p=1 and top_k=0"),
        ("sampling.temperature=0", "greedy episodes"),
        ("loss.clip_low=2", "clip_low must be in"),
        ("loss.kind=ppo", "unknown policy loss 'ppo'; did you mean 'ppo_clip'"),
        ('loss.corrections=[{"kind": "tis"}]', "loss.corrections"),
        ("loss.mode=bypass", "composition rule 3"),
        ("group=4", "group is a group of keys"),
        ("seed.x=4", "seed is a value"),
        ("seed", "expected key=value"),
        ("env.max_turns=4", r"arguments of the environment are set as env\.kwargs\.max_turns"),
        ("lora.rank=8", "unknown key 'lora.rank'; did you mean 'model.lora.rank'"),
        ("lr=1e-3", "did you mean 'critic.lr' or 'optimizer.lr' or 'sft.optimizer.lr'"),
        ("sft.files=a.jsonl", r"sft.files: expected a list, as in 'sft.files=\[\"a.jsonl\"\]', got 'a.jsonl'"),
        ('loss.regularisers=[{"kind": "kl", "coef": -0.1}]', "kl: coef must be at least 0, got -0.1"),
        ('loss.corrections=["icepop"]', r"""as in \{"kind": "icepop"\}, got 'icepop'"""),
        ("loss.corrections=icepop", r"""as in 'loss.corrections=\[{"kind": "icepop"}\]', got 'icepop'"""),
        ("model.lora.rank=-8", "model.lora: rank must be at least 0"),
        ("optimizer.betas=[2,3]", r"optimizer: betas must be at least 0 and below 1, got \[2.0, 3.0\]"),
        ("optimizer.weight_decay=-3", "optimizer: weight_decay must be at least 0"),
        ("optimizer.max_grad_norm=0", "optimizer: max_grad_norm must be above 0, got 0"),
        ("optimizer.lr=Infinity", "optimizer: lr must be finite, got inf"),
        ('group={"group_size": 4, "num_env": 2}', r"unknown key 'group\.num_env'; did you mean 'group\.num_envs'"),
        ('model={"lora": {"rnk": 2}}', r"unknown key 'model\.lora\.rnk'; did you mean 'model\.lora\.rank'"),
        ('envs=[{"id": "agentgym/Maze-v0", "wight": 2}]', r"'envs\.0\.wight'; did you mean 'envs\.0\.weight'"),
    ],
)
def test_wrong_overrides_say_what_is_wrong(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        apply_overrides(load_recipe("tiny"), [override])


def test_the_whole_loss_can_be_set() -> None:
    config = apply_overrides(
        load_recipe("tiny"),
        [
            "loss.kind=gspo",
            'loss.corrections=[{"kind": "seq_tis", "cap": 8, "level": "turn"}, {"kind": "vcpo"}]',
            'loss.regularisers=[{"kind": "kl", "coef": 0.001, "estimator": "k3+"}]',
        ],
    )
    assert (config.loss.level, config.loss.unit, config.loss.mean) == ("turn", "turn", "seq-mean-token-mean")
    assert config.loss.correction("seq_tis").cap == 8
    assert config.loss.regulariser("kl").estimator == "k3+"
    assert from_dict(to_dict(config)) == config


def test_the_environment_of_a_run_on_one_is_a_tuple_of_one(tmp_path: Path) -> None:
    alone = apply_overrides(load_recipe("tiny"), ["env.kwargs.num_objects=3", "env.num_train_tasks=7"])
    (only,) = alone.envs
    assert (only.id, only.kwargs["num_objects"], only.num_train_tasks, only.name) == (alone.env.id, 3, 7, "")
    assert alone.by_env == {"": alone} and not alone.is_mixture and only.weight_at(1, 9) == 1.0
    other = apply_overrides(alone, ["env.id=agentgym/Maze-v0", "env.kwargs={}"])
    assert [env.id for env in other.envs] == ["agentgym/Maze-v0"], "the tuple follows what is set"
    assert [env.id for env in replace(alone, env=other.env).envs] == ["agentgym/Maze-v0"]
    mixed = apply_overrides(alone, ['envs=[{"id": "agentgym/Maze-v0"}, {"id": "agentgym/Wordle-v0", "weight": 2}]'])
    assert [*mixed.by_env] == ["maze", "wordle"] and mixed.is_mixture
    assert apply_overrides(mixed, ["envs=[]"]) == alone
    save_config(alone, tmp_path / "config.json")
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["envs"] == [] and saved["env"] == {"id": only.id, "kwargs": {**only.kwargs}, "num_train_tasks": 7}
    del saved["envs"]  # as runs had it before there were mixtures
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert load_config(tmp_path / "config.json") == alone


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ('{"num_train_tasks": -1}', "envs.maze.num_train_tasks must be at least 0, got -1"),
        ('{"final_weight": -2}', "envs.maze.final_weight must be at least 0, got -2"),
        ('{"weight": "much"}', "envs.0.weight: Input should be a valid number"),
        ('{"wieght": 2}', "did you mean 'envs.0.weight'"),
    ],
)
def test_a_wrong_environment_of_several_is_one_line(env: str, message: str) -> None:
    values = json.dumps([{"id": "agentgym/Maze-v0"} | json.loads(env)])
    with pytest.raises(ConfigError) as refused:
        apply_overrides(load_recipe("tiny"), [f"envs={values}"])
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_sequence_ratio_over_turn_level_advantages_is_refused() -> None:
    overrides = ["loss.kind=gspo", "loss.ratio_level=sequence"]
    with pytest.raises(ConfigError, match="composition rule 5"):
        apply_overrides(load_recipe("tiny"), [*overrides, "credit.estimator=gigpo"])
    assert apply_overrides(load_recipe("tiny"), [*overrides, "credit.estimator=grpo"]).loss.level == "sequence"


def test_what_is_risky_is_said_at_start() -> None:
    config = apply_overrides(
        load_recipe("tiny"), ["loss.kind=minpro", "loss.corrections=[]", 'loss.regularisers=[{"kind": "epo"}]']
    )
    warnings = " ".join(config.warnings)
    assert "minpro is experimental" in warnings
    assert "composition rule 3" in warnings
    assert not load_recipe("tiny").warnings
    (slow,) = apply_overrides(load_recipe("smollm2-guess"), ["num_steps=1"]).warnings
    assert slow == "num_steps=1 ends within optimizer.warmup_steps=2: the full rate is never used"
    # the last step of the warm-up has the full rate
    assert not apply_overrides(load_recipe("smollm2-guess"), ["num_steps=2"]).warnings


def test_a_group_of_one_needs_an_estimator_without_groups() -> None:
    with pytest.raises(ConfigError, match="compares the members of a group"):
        apply_overrides(load_recipe("tiny"), ["group.group_size=1", "group.min_valid=1"])


def test_an_unknown_recipe_names_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'household-demo'"):
        load_recipe("houshold-demo")
    assert "household-demo" in RECIPES


@pytest.mark.parametrize("content", ["{", '{"recipe": "x"}', "[1]"])
def test_a_broken_saved_configuration_is_corrupt_data(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(CorruptDataError, match="not a training configuration"):
        load_config(path)


def test_a_folder_without_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="is not a training run"):
        load_config(tmp_path / "config.json")


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rates_warm_up_and_stay_positive(schedule: str) -> None:
    config = OptimizerConfig(lr=1.0, schedule=schedule, warmup_steps=4, final_lr_share=0.1)  # type: ignore[arg-type]
    rates = [learning_rate(config, step, 20) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(0.1 <= rate <= 1.0 for rate in rates[4:])
    assert schedule == "constant" or rates[-1] < 0.2


def test_a_strategy_is_set_by_its_name_and_then_by_its_keys() -> None:
    made = apply_overrides(load_recipe("tiny"), ["strategy.tasks=vade", "strategy.tasks.pool=7"])
    assert (
        made.strategy == apply_overrides(load_recipe("tiny"), ['strategy.tasks={"kind": "vade", "pool": 7}']).strategy
    )
    with pytest.raises(ConfigError, match=r"unknown key 'strategy\.tasks\.poll'; did you mean 'strategy\.tasks\.pool'"):
        apply_overrides(load_recipe("tiny"), ["strategy.tasks=vade", "strategy.tasks.poll=7"])
    with pytest.raises(ConfigError, match="unknown task source 'vad'; did you mean 'vade'"):
        apply_overrides(load_recipe("tiny"), ["strategy.tasks=vad"])
    with pytest.raises(ConfigError, match=r"strategy\.tasks\.pool"):
        apply_overrides(load_recipe("tiny"), ['strategy.tasks={"kind": "vade", "pool": "x"}'])
