"""Training by self-play: both players of a game are trained, each against its own baseline."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentgym.credit.state import CreditState
from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.checkpoint import load_latest_checkpoint
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

NUM_STEPS = 3


def small(*overrides: str) -> TrainConfig:
    return apply_overrides(
        load_recipe("kuhn"),
        [
            f"num_steps={NUM_STEPS}",
            "groups_per_step=4",
            "sft.num_demos=400",
            "sft.checkpoint_every=25",
            "model.num_layers=1",
            "eval.num_episodes=4",
            "checkpoint_every=2",
            *overrides,
        ],
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "kuhn"
    train(small(), run_dir)
    return run_dir


def test_both_players_are_trained(finished: Path) -> None:
    for step in recorded_steps(finished):
        for record in read_records(record_path(finished, step)):
            assert [trajectory.player for trajectory in record.group.trajectories] in ([0, 1], [0])
            assert all(turn.loss_weight == 1.0 for credit in record.credit for turn in credit)
            assert sum(trajectory.reward or 0.0 for trajectory in record.group.trajectories[:2]) <= 0.0
    rows = [row for row in read_json_lines(finished / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == NUM_STEPS and all(row["trained_tokens"] > 0 for row in rows)


def test_baselines_are_kept_and_follow_the_results(finished: Path) -> None:
    baselines = {"0": 0.0, "1": 0.0}
    for step in recorded_steps(finished):
        for record in read_records(record_path(finished, step)):
            for trajectory, credit in zip(record.group.trajectories, record.credit, strict=True):
                if not trajectory.turns:
                    continue
                assert trajectory.reward is not None
                key = str(trajectory.player)
                for turn in credit:
                    assert turn.advantage == pytest.approx(trajectory.reward - baselines[key])
                baselines[key] = 0.95 * baselines[key] + 0.05 * trajectory.reward
    found = load_latest_checkpoint(finished)
    assert found is not None
    assert CreditState.from_dict(found.plain["credit"]["env"]).memory["rae"] == pytest.approx(baselines)


def test_the_policy_is_evaluated_against_an_equilibrium(finished: Path) -> None:
    evaluations = [row for row in read_json_lines(finished / "metrics.jsonl") if row["phase"] == "eval"]
    assert len(evaluations) == 2


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(finished: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    train(small(), stopped)
    checkpoints = sorted((stopped / "checkpoints").glob("rl-*"))
    shutil.rmtree(checkpoints[-1])
    train(small(), stopped, resume=True)
    name = "model/model.safetensors"
    assert (stopped / name).read_bytes() == (finished / name).read_bytes()


def test_groups_of_games_are_compared_player_by_player(tmp_path: Path) -> None:
    config = small("credit.estimator=grpo", "group.group_size=6", "num_steps=1", "groups_per_step=2")
    train(config, tmp_path / "run")
    for record in read_records(record_path(tmp_path / "run", 0)):
        for player in (0, 1):
            credited = [
                credit[0].advantage
                for trajectory, credit in zip(record.group.trajectories, record.credit, strict=True)
                if trajectory.player == player and credit
            ]
            assert sum(credited) == pytest.approx(0.0, abs=1e-5)


def test_a_game_needs_somebody_to_be_evaluated_against(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"would play 2 players .*; give it an opponent of the environment"):
        train(small("eval.kwargs.opponent=self", "sft.num_demos=32", "num_steps=1"), tmp_path / "run")


def test_noise_is_a_share() -> None:
    with pytest.raises(ConfigError, match="noise must be between 0 and 1"):
        small("sft.noise=1.5")
