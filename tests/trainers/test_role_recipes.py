"""Recipes with several models: the command of each trains a small step, and its roles play and learn."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.own_tokenizers import folder, needs
from testkit.ray_runs import CLUSTER, warm_workers
from transformers import Qwen3Config, Qwen3ForCausalLM
from typer.testing import CliRunner

import agentgym
from agentgym.cli.main import app
from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.trainers.recipes import load_recipe

SMALL = (
    "model.num_layers=1",
    "sft.num_demos=400",
    "num_steps=1",
    "groups_per_step=2",
    "group.num_envs=8",
    "eval.num_episodes=2",
    "zero_variance_filter=off",
)
ROLES = {
    "m-grpo": ("worker", True),
    "marft": ("worker", True),
    "agentflow": ("modules", False),
    "search-planner": ("solver", False),
    "strategist": ("player", False),
    "kuhn-league": ("opponent", False),
}


@pytest.mark.parametrize("recipe", ROLES)
def test_the_command_of_a_recipe_trains(recipe: str, tmp_path: Path) -> None:
    role, is_trained = ROLES[recipe]
    size = () if load_recipe(recipe).group.group_size == 1 else ("group.group_size=3",)
    run_dir = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", recipe, *SMALL, *size, "--run-dir", str(run_dir), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps_made"] == 1
    (row,) = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    assert row["trained_tokens"] > 0
    assert (row.get(f"role/{role}/trained_tokens", 0) > 0) == is_trained
    assert (f"role/{role}/critic_loss" in row) == (recipe == "marft")
    episodes = [one for record in read_records(record_path(run_dir, 0)) for one in record.group.valid]
    own = {segment.role for one in episodes for segment in one.segments}
    frozen = {segment.role for one in episodes for segment in one.frozen_segments}
    assert (own, frozen) == (({"", role}, set()) if is_trained else ({""}, {role}))


# ------------------------------------------------------------------------------------------------ recipes for GPUs

ON_GPUS = {f"{recipe}-qwen3-4b": role for recipe, (role, _) in ROLES.items()}


def qwen3(path: Path) -> Path:
    """Write a tiny model of Qwen3's architecture with random weights and the real tokenizer."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    shape = Qwen3Config(
        vocab_size=151_936, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True,
        max_position_embeddings=32_768, **sizes,
    )  # fmt: skip
    made: Any = Qwen3ForCausalLM(shape)
    made.save_pretrained(path)
    for file in folder("qwen3").iterdir():
        shutil.copy(file, path)
    return path


@pytest.mark.slow
@needs("qwen3")
@pytest.mark.parametrize("recipe", ON_GPUS)
def test_a_recipe_for_gpus_makes_a_step_with_random_weights(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: str
) -> None:
    """A tiny model of Qwen3's architecture, with its tokenizer and adapters; it cannot play what the roles are for.

    The engines of M-GRPO are embedded ones on a Ray cluster of this machine; test_ray_roles.py has vLLM servers.
    """
    path, role, run_dir = str(qwen3(tmp_path / "model")), ON_GPUS[recipe], tmp_path / "run"
    size = 1 if load_recipe(recipe).group.group_size == 1 else 2
    small: dict[str, Any] = {"num_steps": 1, "groups_per_step": 4, "group.num_envs": 4, "eval.num_episodes": 1}
    small |= {"group.group_size": size, "sampling.max_new_tokens": 8, "env.kwargs.max_turns": 1, "model.path": path}
    small |= {"zero_variance_filter": "off"}
    if load_recipe(recipe).roles[role].has_model and not load_recipe(recipe).roles[role].trained and role != "opponent":
        small |= {f"roles.{role}.policy": path}
    if recipe.startswith("m-grpo"):
        pytest.importorskip("ray")
        warm_workers(monkeypatch, warm_python)
        here = replace(CLUSTER, num_env_workers=1)
        small |= {f"cluster.{key}": getattr(here, key) for key in ("address", "num_env_workers", "start_timeout_s")}
        small |= {"cluster.gpus_per_engine": 0, "cluster.object_store_mb": 100, "engine.kind": "torch"}
    if recipe.startswith("kuhn"):
        del small["env.kwargs.max_turns"]
    agentgym.train(recipe, small, run_dir=run_dir)
    (row,) = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    assert row["trained_tokens"] > 0 and row["logprob_gap_max"] < 1e-3
    assert (run_dir / "roles" / role / "model").is_dir() == load_recipe(recipe).roles[role].trained
