"""The warm start in TRL's SFTTrainer ends where ours does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config
from testkit.killed_runs import resume

pytest.importorskip("trl")

from safetensors.torch import load_file

from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.train import train

SFT = SftConfig(num_demos=24, num_epochs=2, batch_size=4, observation_weight=0.0)


def started(sft: SftConfig) -> TrainConfig:
    return config(sft=sft, num_steps=0, checkpoint_every=5)


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "model" / "model.safetensors")


def sft_rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "sft"]


@pytest.mark.parametrize("observation_weight", [0.0, 1.0])
def test_both_trainers_end_with_close_weights(tmp_path: Path, observation_weight: float) -> None:
    sft = replace(SFT, observation_weight=observation_weight)
    train(started(sft), tmp_path / "own")
    train(started(replace(sft, trainer="trl")), tmp_path / "trl")
    own, trl = weights(tmp_path / "own"), weights(tmp_path / "trl")
    assert own.keys() == trl.keys()
    for name, tensor in own.items():
        torch.testing.assert_close(trl[name], tensor, atol=1e-4, rtol=0, msg=name)
    of_own, of_trl = (sft_rows_of(tmp_path / name) for name in ("own", "trl"))
    assert [row["step"] for row in of_trl] == [row["step"] for row in of_own] == list(range(1, 13))
    for ours, theirs in zip(of_own, of_trl, strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-3)
        assert theirs["lr"] == pytest.approx(ours["lr"])
        assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-2)


def test_a_warm_start_in_trl_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    made = started(replace(SFT, trainer="trl"))
    train(made, tmp_path / "whole")
    train(made, tmp_path / "stopped")
    checkpoints = sorted((tmp_path / "stopped" / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["sft-000010", "rl-000000"][::-1]
    drop_checkpoint(tmp_path / "stopped", 0)
    resume(tmp_path / "stopped")
    for name, tensor in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(tmp_path / "stopped")[name], tensor, atol=1e-6, rtol=0, msg=name)
    rows = sft_rows_of(tmp_path / "stopped")
    assert [row["step"] for row in rows] == list(range(1, 13))


def test_what_trl_leaves_on_the_model_is_undone(tmp_path: Path) -> None:
    """RL after TRL's phase goes through the model's own forward."""
    train(config(sft=replace(SFT, trainer="trl"), num_steps=1), tmp_path / "run")
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["phase"] for row in rows][-3:] == ["eval", "rl", "eval"]
