"""Checkpoints of adapters over a model's files: the adapters alone, and the same run after it is resumed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from testkit.checkpoints import drop_checkpoint, read_checkpoint

from agentgym.errors import UsageError
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.tensor_folder import tensors_of
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.model import add_lora, copy_of_trained, never_trained
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

FEW = ("groups_per_step=2", "group.group_size=2", "group.num_envs=4")
KL = 'loss.regularisers=[{"kind": "kl", "coef": 0.1}]'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that a run has trained."""
    run_dir = tmp_path_factory.mktemp("base") / "run"
    small = ["num_steps=0", "sft.num_demos=8", "eval.num_episodes=1"]
    train(apply_overrides(load_recipe("tiny"), small), run_dir)
    return run_dir / "model"


def settings_over(folder: Path, *more: str) -> TrainConfig:
    small = ["num_steps=2", "checkpoint_every=1", "sft.num_demos=0", "eval.num_episodes=1", "zero_variance_filter=off"]
    adapters = [f"model.path={folder}", "model.lora.rank=2", KL]
    return apply_overrides(load_recipe("tiny"), [*small, *FEW, *adapters, *more])


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return set(one) == set(other) and all(torch.equal(other[name], value) for name, value in one.items())


def test_adapters_alone_are_stored_and_the_run_resumes_with_them(folder: Path, tmp_path: Path) -> None:
    settings = settings_over(folder)
    train(settings, tmp_path / "run")
    whole = read_checkpoint(tmp_path / "run", 2)
    names = [*whole["model"], *whole["reference"]]
    assert names and all(".lora_" in name for name in names)
    drop_checkpoint(tmp_path / "run", 2)
    train(settings, tmp_path / "run", resume=True)
    again = read_checkpoint(tmp_path / "run", 2)
    assert same(whole["model"], again["model"]) and same(whole["reference"], again["reference"])


def test_a_checkpoint_of_an_earlier_version_has_all_weights_and_is_resumed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_over(folder)
    with monkeypatch.context() as earlier:
        earlier.setattr(ModelConfig, "trains_adapters_of_files", False)
        train(settings, tmp_path / "run")
    whole = read_checkpoint(tmp_path / "run", 2)
    assert any(".lora_" not in name for name in whole["model"])
    drop_checkpoint(tmp_path / "run", 2)
    train(settings, tmp_path / "run", resume=True)
    again = read_checkpoint(tmp_path / "run", 2)
    assert all(".lora_" in name for name in again["model"])
    assert all(torch.equal(whole["model"][name], value) for name, value in again["model"].items())


def test_other_weights_below_the_adapters_are_refused(folder: Path, tmp_path: Path) -> None:
    base = shutil.copytree(folder, tmp_path / "base")
    settings = settings_over(base)
    train(settings, tmp_path / "run")
    weights = load_file(base / "model.safetensors")
    save_file({name: value + 1.0 for name, value in weights.items()}, base / "model.safetensors")
    for _ in range(2):  # the first refusal leaves nothing that would let the second pass
        with pytest.raises(UsageError, match=r"the weights in .* have changed since this run was begun"):
            train(replace(settings, num_steps=3), tmp_path / "run", resume=True)


def test_weights_of_a_new_model_below_adapters_are_stored(tmp_path: Path) -> None:
    small = ["num_steps=1", "sft.num_demos=0", "eval.num_episodes=1", "model.lora.rank=2"]
    train(apply_overrides(load_recipe("tiny"), [*small, *FEW]), tmp_path / "run")
    assert any(".lora_" not in name for name in read_checkpoint(tmp_path / "run", 1)["model"])


@pytest.mark.parametrize("estimator", ["turn_gae", "archer"])
def test_critics_share_the_weights_below_adapters(folder: Path, tmp_path: Path, estimator: str) -> None:
    settings = settings_over(folder, f"credit.estimator={estimator}", "critic.num_updates=1")
    train(settings, tmp_path / "run")
    whole = read_checkpoint(tmp_path / "run", 2)
    stored = [tensor.numel() for _, tensor in tensors_of(whole["columns"])]
    assert 0 < sum(stored) < 0.5 * sum(value.numel() for value in load_file(folder / "model.safetensors").values())
    drop_checkpoint(tmp_path / "run", 2)
    train(settings, tmp_path / "run", resume=True)
    again = read_checkpoint(tmp_path / "run", 2)
    assert same(dict(tensors_of(whole["columns"])), dict(tensors_of(again["columns"])))
    assert same(whole["model"], again["model"])


def test_a_second_model_has_adapters_of_its_own_alone(small_model: Any) -> None:
    policy = add_lora(small_model, LoraSettings(rank=2), seed=0)
    second = never_trained(copy_of_trained(policy))
    own = {name: weight.data_ptr() for name, weight in policy.named_parameters()}
    others = {name for name, weight in second.named_parameters() if weight.data_ptr() != own[name]}
    assert others == {name for name, weight in policy.named_parameters() if weight.requires_grad}
    assert others and all(".lora_" in name for name in others)
