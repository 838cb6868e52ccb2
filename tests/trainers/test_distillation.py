"""On-policy distillation: the policy learns from a teacher's log-probabilities of its own samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, weights

from agentgym.errors import ConfigError, UsageError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.planning.dry_run import dry_run
from agentgym.trainers.train import train

ALONE = ("loss.weight=0", "zero_variance_filter=off")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has seen many more demonstrations than its student will."""
    run_dir = tmp_path_factory.mktemp("teacher") / "run"
    train(config(num_steps=0, sft=SftConfig(num_demos=640, num_epochs=4, batch_size=8, checkpoint_every=80)), run_dir)
    return run_dir / "model"


def student(teacher: Path, *overrides: str, **changes: Any) -> TrainConfig:
    regularisers = json.dumps([{"kind": "distill", "teacher": str(teacher)}])
    made = config(**{"num_steps": 4, **changes})
    return apply_overrides(made, [f"loss.regularisers={regularisers}", "optimizer.lr=5e-3", *overrides])


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]


def test_the_policy_comes_nearer_to_its_teacher(teacher: Path, tmp_path: Path) -> None:
    train(student(teacher, *ALONE, num_steps=10, groups_per_step=12), tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert all(row["trained_tokens"] and row["num_dropped_groups"] == 0 for row in rows), "no reward is needed"
    first, last = (sum(row["teacher_kl"] for row in part) / 2 for part in (rows[:2], rows[-2:]))
    assert first > 0 and last < 0.7 * first


def test_a_resumed_run_ends_in_the_same_weights(teacher: Path, tmp_path: Path) -> None:
    settings = student(teacher, checkpoint_every=1)
    train(settings, tmp_path / "run")
    expected = weights(tmp_path / "run")
    drop_checkpoint(tmp_path / "run", 4)
    (tmp_path / "run" / "model" / "model.safetensors").unlink()
    train(settings, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected
    assert not list((tmp_path / "run" / "checkpoints").rglob("*teacher*")), "the teacher stays where it is"


def test_a_teacher_that_speaks_other_tokens_is_refused(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the teacher .* has another tokenizer \(2\d\d tokens\)"):
        train(student(teacher, *ALONE, "model.path=", "model.vocab_size=270"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_is_refused(teacher: Path) -> None:
    with pytest.raises(ConfigError, match="set zero_variance_filter=off"):
        student(teacher, "loss.weight=0")
    with pytest.raises(ConfigError, match="set its teacher"):
        apply_overrides(config(), ['loss.regularisers=[{"kind": "distill"}]'])


def test_the_plan_counts_the_teacher(teacher: Path) -> None:
    alone, taught = (dry_run(made).memory.reference for made in (config(), student(teacher)))
    assert alone == 0 and taught > 0
