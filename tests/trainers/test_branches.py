"""Branches: a run that goes on from another run's checkpoint with other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from testkit import counting_runs
from typer.testing import CliRunner

from agentgym.api.training import resume
from agentgym.cli.main import app
from agentgym.errors import ConfigError, UsageError
from agentgym.rollout.record import read_json_lines, read_json_object
from agentgym.trainers.branches import AFTER_WARM_START, branch, warm_start_settings
from agentgym.trainers.config.overrides import apply_overrides, load_config, to_dict
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.train import train

KL = 'loss.regularisers=[{"kind": "kl", "coef": 0.1}]'


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm start alone."""
    run_dir = tmp_path_factory.mktemp("start") / "run"
    train(counting_runs.from_scratch(num_steps=0, eval=EvalConfig(num_episodes=2)), run_dir)
    return run_dir


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    train(counting_runs.config(num_steps=2, eval=EvalConfig(num_episodes=2)), run_dir)
    return run_dir


def changed(source: Path, *overrides: str) -> TrainConfig:
    return apply_overrides(load_config(source / "config.json"), overrides)


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.mark.parametrize("overrides", [(), (KL, "optimizer.lr=1e-3"), ("credit.estimator=turn_gae",)])
def test_a_branch_of_a_warm_start_equals_a_whole_run(start: Path, tmp_path: Path, overrides: tuple[str, ...]) -> None:
    own = ["num_steps=2", *overrides]
    whole = apply_overrides(counting_runs.from_scratch(eval=EvalConfig(num_episodes=2)), own)
    train(whole, tmp_path / "whole")
    branch(start, tmp_path / "branch", changed(start, *own))
    train(load_config(tmp_path / "branch" / "config.json"), tmp_path / "branch", resume=True)
    assert counting_runs.weights(tmp_path / "branch") == counting_runs.weights(tmp_path / "whole")
    assert to_dict(load_config(tmp_path / "branch" / "config.json")) == to_dict(whole)
    rows, own_rows = (
        [(row["phase"], row["step"], row.get("success")) for row in read_json_lines(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "branch")
    )
    assert rows == own_rows


def test_a_branch_goes_on_from_the_last_step_with_another_rate_and_group_size(trained: Path, tmp_path: Path) -> None:
    before = counting_runs.weights(trained)
    words = ["num_steps=4", "optimizer.lr=0.002", "optimizer.weight_decay=0.1", "group.group_size=6"]
    done = invoke("train", "--resume", trained, *words, "--run-dir", tmp_path / "branch")
    assert done.exit_code == 0, done.output
    made = read_json_object(tmp_path / "branch" / "branch.json")
    assert (made["phase"], made["step"]) == ("rl", 2)
    assert made["changes"]["optimizer.lr"] == [2e-4, 2e-3]
    assert (tmp_path / "branch" / made["run"]).resolve() == trained.resolve()
    rows = [row for row in read_json_lines(tmp_path / "branch" / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["lr"] for row in rows[2:]] == [2e-3, 2e-3]
    assert sum(value for name, value in rows[3].items() if name.startswith("status/")) == 18
    assert counting_runs.weights(trained) == before
    # the branch is a run like any other
    assert resume(tmp_path / "branch").steps == 4


def test_the_optimizer_keeps_the_branchs_settings(trained: Path, tmp_path: Path) -> None:
    decayed = {}
    for decay in (0.0, 10.0):
        folder = tmp_path / str(decay)
        branch(trained, folder, changed(trained, "num_steps=5", f"optimizer.weight_decay={decay}"))
        train(load_config(folder / "config.json"), folder, resume=True)
        decayed[decay] = counting_runs.weights(folder)
    assert decayed[0.0] != decayed[10.0]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("model.max_context_tokens=200",), "keeps model.max_context_tokens"),
        (("seed=1", "optimizer.lr=1e-3"), "keeps seed, on which"),
        (("optimizer.kind=muon",), "keeps optimizer.kind"),
        (("groups_per_step=2",), "keeps groups_per_step"),
        ((KL,), "no policy before RL as a reference"),
        (("credit.estimator=turn_gae",), "turn_gae reads other columns"),
        (("num_steps=1",), "num_steps=1 is below 2"),
        ((), "needs a setting that differs"),
    ],
)
def test_what_a_checkpoint_depends_on_is_refused(
    trained: Path, tmp_path: Path, overrides: tuple[str, ...], named: str
) -> None:
    done = invoke("train", "--resume", trained, *overrides, "--run-dir", tmp_path / "branch")
    assert done.exit_code == 2
    assert named in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "branch" / "config.json").exists()


def test_a_warm_start_refuses_what_it_depends_on(start: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"after its warm start keeps sft\.noise"):
        branch(start, tmp_path / "branch", changed(start, "num_steps=2", "sft.noise=0.5"))


def test_the_refusal_names_the_keys_and_the_way(trained: Path) -> None:
    done = invoke("train", "--resume", trained, "optimizer.lr=1e-3")
    assert done.exit_code == 2
    assert f"agentgym train --resume {trained} optimizer.lr=1e-3 --run-dir NEW" in done.stderr
    with pytest.raises(UsageError, match="branch_dir=NEW makes a branch"):
        resume(trained, changes={"optimizer.lr": 1e-3})


def test_a_run_in_its_warm_start_has_no_branch(start: Path, tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "config.json").write_text((start / "config.json").read_text())
    done = invoke("train", "--resume", tmp_path / "early", "optimizer.lr=1e-3", "--run-dir", tmp_path / "b", "--trust")
    assert done.exit_code == 2 and "has no checkpoint after its warm start" in done.stderr


def test_settings_of_rl_alone_are_settings() -> None:
    known = warm_start_settings(counting_runs.from_scratch())
    tree = json.loads(json.dumps(to_dict(counting_runs.from_scratch())))
    for path in AFTER_WARM_START:
        node = tree
        for part in path.split("."):
            assert part in node, path
            node = node[part]
    assert {"seed", "sft.noise", "model.hidden_size", "loss.precision", "eval.split"} <= set(known)
    assert not {"optimizer.lr", "credit.estimator", "eval.every"} & set(known)


def test_a_run_without_rl_prints_its_success(tmp_path: Path) -> None:
    words = ["num_steps=0", "sft.num_demos=16", "sft.batch_size=8", "eval.num_episodes=2", "sft.num_epochs=1"]
    env = f"env.id={counting_runs.ENV_FILE}:Counting-v0"
    done = invoke("train", "tiny", env, *words, "--run-dir", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "success: without RL (num_steps=0) " in done.stdout
    assert read_json_object(tmp_path / "run" / "result.json")["success_before"] is not None
