"""The reference of a KL term by adapters: the numbers of a second model, without one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.counting_runs import config, from_scratch
from testkit.policy_updates import on_policy

from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.distributed.reference import EarlierAdapters, Reference, scored
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import KlOptions
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.decoder import WeightCounts
from agentgym.trainers.models.model import add_lora, frozen_copy
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.planning.footprint import checkpoint_bytes
from agentgym.trainers.train import train

KL = 'loss.regularisers=[{"kind": "kl", "coef": 0.05}]'
LORA = 'model={"hidden_size": 32, "num_layers": 1, "head_dim": 16, "vocab_size": 320, "lora": {"rank": 4}}'


@pytest.fixture
def policy(small_model: Any) -> Any:
    """A policy whose adapters have learned something."""
    made = add_lora(small_model, LoraSettings(rank=4), seed=0)
    moved(made)
    return made


def moved(policy: Any) -> None:
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".lora_" in name:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))


@pytest.mark.parametrize("recompute", [False, True])
def test_updates_are_those_with_a_second_model(policy: Any, recompute: bool) -> None:
    verdicts = on_policy(policy)
    loss = LossConfig(regularisers=(KlOptions(coef=0.5),), num_updates=2, recompute_activations=recompute)
    ended = []
    for take in (frozen_copy, EarlierAdapters):
        model = copy.deepcopy(policy)
        reference: Reference = take(model)
        moved(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        metrics = update_policy(
            model, optimizer, verdicts, loss, temperature=1.0, max_grad_norm=1.0, reference=reference
        ).metrics
        ended.append((metrics, {name: value for name, value in model.state_dict().items() if ".lora_" in name}))
    (one, weights), (other, same) = ended
    assert one == other and one["kl"] > 0
    assert weights.keys() == same.keys() and all(torch.equal(weights[name], same[name]) for name in weights)


def test_adapters_are_back_also_after_a_failure(policy: Any) -> None:
    reference = EarlierAdapters(policy)
    moved(policy)
    today = {name: value.clone() for name, value in policy.state_dict().items()}
    with pytest.raises(ZeroDivisionError), scored(reference) as model:
        assert any(not torch.equal(value, today[name]) for name, value in model.state_dict().items())
        raise ZeroDivisionError
    assert all(torch.equal(value, today[name]) for name, value in policy.state_dict().items())


def test_a_run_keeps_the_adapters_before_rl_and_resumes_with_them(tmp_path: Path) -> None:
    settings = apply_overrides(from_scratch(), [LORA, KL, "num_steps=2", "checkpoint_every=1", "sft.mix.weight=0.5"])
    train(settings, tmp_path / "run")
    whole = read_checkpoint(tmp_path / "run", 2)
    assert whole["reference"] and all(".lora_" in name for name in whole["reference"])
    assert any(not torch.equal(whole["model"][name], value) for name, value in whole["reference"].items())
    drop_checkpoint(tmp_path / "run", 2)
    train(settings, tmp_path / "run", resume=True)
    again = read_checkpoint(tmp_path / "run", 2)
    for part in ("model", "reference"):
        assert all(torch.equal(again[part][name], value) for name, value in whole[part].items()), part


def test_without_adapters_a_second_model_is_kept_and_the_plan_knows() -> None:
    weights = WeightCounts(own=990, adapters=10, matrices=900, layer=100)
    with_kl = apply_overrides(config(), [LORA, KL])
    whole = apply_overrides(config(), [KL])
    assert with_kl.needs_no_second_model and not whole.needs_no_second_model
    assert checkpoint_bytes(with_kl, weights) == 4 * (1000 + 10 + 20)
    assert checkpoint_bytes(whole, weights) == 4 * (1000 + 1000 + 20)
    of_files = apply_overrides(with_kl, ['model={"path": "FOLDER", "lora": {"rank": 4}}'])
    assert checkpoint_bytes(of_files, weights) == 4 * (10 + 10 + 20)  # adapters alone
