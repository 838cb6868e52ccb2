"""Runs whose ranks play themselves, from vLLM servers that Ray starts; a stand-in samples in place of vLLM."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from testkit import TESTKIT
from testkit.ray_runs import CLUSTER, NUM_STEPS, config, give, note_ranks, rl_rows, warm_workers
from testkit.vllm_program import write_program

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_records, record_path
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.train import train

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

RANKS_PLAY = replace(CLUSTER, num_env_workers=0, num_trainer_ranks=2, cpus_per_engine=0)


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: str) -> None:
    warm_workers(monkeypatch, warm_python)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTKIT.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("AGENTGYM_VLLM_PYTHON", str(write_program(tmp_path / "python", warm_python)))


def served(orders: Path, cluster: ClusterConfig) -> TrainConfig:
    patient = EngineConfig(kind="vllm", start_timeout_s=600.0, server_wait_s=600.0)
    return replace(config(orders, cluster), engine=patient)


def sampled(run_dir: Path) -> list[list[list[tuple[int, ...]]]]:
    """Return the sampled tokens of each group's episodes."""
    return [
        [[turn.completion.token_ids for turn in episode.turns] for episode in record.group.trajectories]
        for step in range(NUM_STEPS)
        for record in read_records(record_path(run_dir, step))
    ]


def test_ranks_play_from_servers_that_ray_starts_also_when_one_dies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(tmp_path), tmp_path / "alone")
    (tmp_path / "die").touch()
    capsys.readouterr()
    train(served(tmp_path, RANKS_PLAY), tmp_path / "run")
    assert not (tmp_path / "die").exists(), "else nothing died"
    assert sampled(tmp_path / "run") == sampled(tmp_path / "alone")
    said = capsys.readouterr().err
    assert (
        "vLLM servers that Ray starts: http://" in said
        and "no effect" not in said
        and "2 ranks: each plays 1/2 of a step's groups;" in said
    )
    assert "was started again" in said
    assert "vLLM server 0 is lost: it ended (" in said
    assert rl_rows(tmp_path / "run")[-1]["vllm_servers/num_restarts"] == 1


def test_ranks_that_are_killed_start_servers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note_ranks(monkeypatch, tmp_path)
    give(tmp_path, "kill-rank-1", 1)
    give(tmp_path, "kill-rank-0", 2)
    train(replace(served(tmp_path, RANKS_PLAY), checkpoint_every=1), tmp_path / "run")
    assert (tmp_path / "done-kill-rank-1").exists() and (tmp_path / "done-kill-rank-0").exists()
    assert [row["ranks/num_restarts"] for row in rl_rows(tmp_path / "run")] == [0, 1, 2]


def test_a_machine_without_vllm_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_VLLM_PYTHON", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no vLLM server can be started: .*no vLLM in"):
        train(served(tmp_path, replace(RANKS_PLAY, num_trainer_ranks=0)), tmp_path / "run")
