"""Recipes with several models: the command of each trains a small step, and its roles play and learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
