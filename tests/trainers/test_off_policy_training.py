"""Runs on replayed data without importance ratios: they train, what they replay is counted, and they can be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, weights

from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.train import train

SPEAR = 'strategy.replay={"kind": "spear", "warmup_steps": 0}'
REPLAY = ("env.num_train_tasks=5", SPEAR, "zero_variance_filter=return")
NO_RATIO = ("loss.mode=bypass", "loss.corrections=[]")
ASYMRE = ("credit.estimator=asymre", "loss.kind=reinforce", 'loss.options={"kind": "reinforce", "cap": 0}', *NO_RATIO)
OPMD = ("credit.estimator=opmd", "loss.kind=opmd_squared", *NO_RATIO)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [ASYMRE, OPMD], ids=["asymre", "opmd"])
def test_replayed_episodes_train_without_a_ratio(overrides: tuple[str, ...], tmp_path: Path) -> None:
    made = apply_overrides(config(num_steps=4, checkpoint_every=2), [*REPLAY, *overrides])
    train(made, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    replayed = [row for row in rows if row["num_replayed"]]
    assert replayed and all(row["grad_norm"] > 0 for row in replayed)
    assert {row["clip_fraction"] for row in replayed} == {0.0}, "no gate and no ratio"
    assert {row["correction_weight"] for row in replayed} == {1.0}
    expected = weights(tmp_path / "run")
    drop_checkpoint(tmp_path / "run", 4)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected
