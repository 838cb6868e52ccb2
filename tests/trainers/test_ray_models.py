"""Runs on Ray clusters that begin with a model's folder: bit for bit the runs without Ray."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit import TESTKIT
from testkit.architecture_steps import save_at_odd_addresses
from testkit.architectures import WITH_VISION, model_of, seeing_model
from testkit.killed_runs import SCRIPT
from testkit.ranks import forked
from testkit.ray_runs import CLUSTER, config_of, rl_rows, warm_workers
from testkit.run_records import told, weights

from agentgym.trainers.config.overrides import save_config
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.trainers.train import train

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
TOKENIZER = train_tokenizer(["Count to 2. Count to 3. Count to 4. add: 1 The count is 1. The count is 2."] * 5, 300)
SIZES = ModelConfig(hidden_size=64, num_layers=2, head_dim=16, max_context_tokens=160)
KINDS = ("qwen3", "gpt_neox", "qwen3_vl")
"""Types that the engine samples from by its own forward pass; by transformers'; and with a class for images, too."""


@pytest.fixture(autouse=True)
def _path_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's file imports another one beside it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTKIT.parent), os.environ.get("PYTHONPATH", "")]))


def made(kind: str) -> Any:
    """Return a model whose products are large enough for all kernels of this machine."""
    if kind == "qwen3":
        return build_model(TOKENIZER, SIZES, seed=0)
    sizes = {"vocab_size": len(TOKENIZER), "hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 2}
    return seeing_model(kind, **sizes) if kind in WITH_VISION else model_of(kind, **sizes)


def check_same(run_dir: Path, expected: Path) -> None:
    assert any(row["trained_tokens"] for row in rl_rows(expected)), "else equal weights would say nothing"
    assert told(run_dir) == told(expected), "completions hold the log-probabilities"
    assert weights(run_dir) == weights(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_env_workers_and_engines_of_a_cluster(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: str
) -> None:
    warm_workers(monkeypatch, warm_python)
    save_at_odd_addresses(made(kind), TOKENIZER, tmp_path / "base")
    train(config_of(tmp_path / "base", tmp_path), tmp_path / "alone")
    train(config_of(tmp_path / "base", tmp_path, CLUSTER), tmp_path / "run")
    check_same(tmp_path / "run", tmp_path / "alone")


def test_ranks_of_a_cluster(tmp_path: Path, warm_python: str) -> None:
    """On workers that start as everybody's do: Ray's, without the imports of the tests' process."""
    save_at_odd_addresses(made("qwen3"), TOKENIZER, tmp_path / "base")
    alone, plain = tmp_path / "alone", config_of(tmp_path / "base", tmp_path)
    alone.mkdir()
    save_config(replace(plain, ranks=replace(plain.ranks, rollouts="first")), alone / "config.json")
    forked(warm_python, 2, "-c", SCRIPT, str(alone))
    ranks = replace(CLUSTER, num_trainer_ranks=2, num_env_workers=1)
    train(config_of(tmp_path / "base", tmp_path, ranks), tmp_path / "run")
    check_same(tmp_path / "run", alone)
