"""The recipe for MiniWoB++, the whole way in small: pages in a browser, demonstrations, RL and a curve."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentgym.envs.gui.chromium import INSTALL, has_chromium
from agentgym.envs.gui.miniwob.solvers import SOLVERS
from agentgym.evals.episodes import read_rows
from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.trainers.config.overrides import load_config, save_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train


def small() -> TrainConfig:
    demo = load_recipe("miniwob-demo")
    return replace(
        demo,
        model=replace(demo.model, hidden_size=32, num_layers=1, head_dim=16, num_text_episodes=8),
        sft=replace(demo.sft, num_demos=8, num_epochs=1, batch_size=4),
        num_steps=2,
        groups_per_step=2,
        group=replace(demo.group, group_size=2, min_valid=2),
        eval=replace(demo.eval, num_episodes=8, every=1),
    )


@pytest.mark.gui
@pytest.mark.skipif(not has_chromium(), reason=f"needs Chromium: {INSTALL}")
@pytest.mark.skipif(find_spec("miniwob") is None, reason="needs the extra: pip install -e '.[miniwob]'")
def test_the_recipe_trains_in_a_browser_and_is_evaluated_on_every_task_on_the_way(tmp_path: Path) -> None:
    config = small()
    train(config, tmp_path)
    names = config.env.kwargs["task"]
    for label in ("before", "step-000001", "after"):
        rows = read_rows(tmp_path / "eval" / label)
        assert sorted(row["task_id"] for row in rows) == sorted(f"{name}-2000000000" for name in names)
        assert all(row["error"] is None for row in rows)
    rows = [row for row in read_json_lines(tmp_path / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["status/env_error"] + row["status/timeout"] for row in rows] == [0, 0]
    played = [r.group.task for step in range(2) for r in read_records(record_path(tmp_path, step))]
    assert len(played) == 4 and {task.split for task in played} == {"train"}


def test_the_recipes_tasks_have_scripted_policies() -> None:
    assert set(load_recipe("miniwob-demo").env.kwargs["task"]) <= set(SOLVERS)


def test_the_recipe_is_plain_data(tmp_path: Path) -> None:
    config = load_recipe("miniwob-demo")
    save_config(config, tmp_path / "config.json")
    assert load_config(tmp_path / "config.json") == config
    assert json.loads((tmp_path / "config.json").read_text())["env"]["kwargs"]["pool"]["num_kept"] == 40
