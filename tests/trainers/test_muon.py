"""Muon for hidden matrices, AdamW for the rest: which weights are whose, and that a run resumes bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, weights
from testkit.killed_runs import resume

from agentgym.errors import ConfigError
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.rank_limits import check_ranks
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.models.muon import Muon, hidden_matrices
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

MUON = OptimizerConfig(kind="muon", lr=1e-2, weight_decay=0.1)


def _model() -> Any:
    return build_model(train_tokenizer(["go north"], 300), ModelConfig(hidden_size=32, num_layers=2), seed=0)


def _step(model: Any, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def test_projections_are_muons_and_all_else_is_adamws() -> None:
    model = _model()
    matrices, others = hidden_matrices(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all("proj" in names[id(one)] for one in matrices)
    assert sorted(names[id(one)] for one in others if one.ndim == 2) == ["model.embed_tokens.weight"]
    assert len(matrices) + len(others) == len(names)


def test_a_frozen_weight_is_left_alone() -> None:
    model = _model()
    frozen = model.get_submodule("model.layers.0.mlp.up_proj").weight
    frozen.requires_grad_(False)
    assert all(frozen is not one for group in Muon(model, MUON).param_groups for one in group["params"])


def test_adapters_are_muons_alone() -> None:
    """They are matrices, and no other weight is trained."""
    model = add_lora(_model(), LoraSettings(rank=2), seed=0)
    optimizer = Muon(model, MUON)
    assert [len(group["params"]) for group in optimizer.param_groups] == [2 * 2 * 7]
    before = [parameter.clone() for parameter in optimizer.param_groups[0]["params"]]
    _step(model, optimizer, 0)
    assert not any(map(torch.equal, before, optimizer.param_groups[0]["params"]))


def test_a_step_is_that_of_torchs_two_optimizers() -> None:
    ours, theirs = _model(), _model()
    matrices, others = hidden_matrices(theirs)
    parts: tuple[torch.optim.Optimizer, ...] = (
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=1e-2, betas=MUON.betas, eps=MUON.eps, weight_decay=0.1),
    )
    optimizer = Muon(ours, MUON)
    for seed in range(3):
        _step(ours, optimizer, seed)
        for parameter, given in zip(theirs.parameters(), ours.parameters(), strict=True):
            parameter.grad = given.grad
        for part in parts:
            part.step()
    for own, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(own, expected)


def test_a_loaded_state_goes_on_bit_for_bit() -> None:
    whole, first = _model(), _model()
    through, before = Muon(whole, MUON), Muon(first, MUON)
    for seed in range(4):
        _step(whole, through, seed)
    for seed in range(2):
        _step(first, before, seed)
    second = _model()
    second.load_state_dict(first.state_dict())
    after = Muon(second, MUON)
    after.load_state_dict(before.state_dict())
    for seed in range(2, 4):
        _step(second, after, seed)
    for own, expected in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(own, expected)


def test_several_ranks_are_refused() -> None:
    for name in ("optimizer", "sft.optimizer"):
        made = apply_overrides(load_recipe("household-smoke"), [f"{name}.kind=muon"])
        check_ranks(made, 1)
        with pytest.raises(ConfigError, match=rf"2 ranks cannot train with {name}\.kind=muon"):
            check_ranks(made, 2)


def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path: Path) -> None:
    sft = SftConfig(num_demos=24, num_epochs=1, batch_size=8, optimizer=MUON)
    made = config(sft=sft, optimizer=replace(MUON, lr=1e-3), num_steps=4, checkpoint_every=2)
    train(made, tmp_path / "whole")
    stopped = tmp_path / "stopped"
    train(made, stopped)
    drop_checkpoint(stopped, 4)
    (stopped / "model" / "model.safetensors").unlink()
    resume(stopped)
    assert weights(stopped) == weights(tmp_path / "whole")
    plain = replace(made, sft=replace(sft, optimizer=replace(MUON, kind="adamw")))
    train(plain, tmp_path / "plain")
    assert weights(tmp_path / "plain") != weights(tmp_path / "whole")
