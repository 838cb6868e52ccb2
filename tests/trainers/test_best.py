"""The best model of a run, and RL that ends when evaluations get no better."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit import counting_runs
from typer.testing import CliRunner

from agentgym.cli.main import app
from agentgym.errors import ConfigError
from agentgym.evals.runner import evaluate
from agentgym.report.table import table
from agentgym.rollout.record import read_json_lines, read_json_object
from agentgym.settings import checked
from agentgym.trainers.config.stages import EvalConfig
from agentgym.trainers.loop import train
from agentgym.trainers.phases.best import best_of


def run_with(folder: Path, monkeypatch: pytest.MonkeyPatch, successes: list[float], **changes: Any) -> Path:
    """Train with evaluations whose success is given, one after the other, before RL first."""
    given = iter(successes)
    summarise = evaluate

    async def scripted(*args: Any, **kwargs: Any) -> Any:
        return replace(await summarise(*args, **kwargs), success=next(given))

    plan = counting_runs.config(num_steps=6, eval=EvalConfig(num_episodes=2, every=1, **changes), checkpoint_every=4)
    monkeypatch.setattr("agentgym.trainers.phases.evaluation.evaluate", scripted)
    train(plan, folder)
    return folder


def test_the_best_model_is_kept_and_rl_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "run", monkeypatch, [0.1, 0.5, 0.9, 0.4, 0.9, 0.4], keep_best=True, patience=2)
    assert read_json_object(run / "best.json") == {"step": 2, "success": 0.9}
    assert (run / "best" / "model.safetensors").read_bytes() != counting_runs.weights(run)
    result = read_json_object(run / "result.json")
    assert (result["steps"], result["steps_made"], result["success_after"]) == (6, 4, 0.4)
    rows = [row["step"] for row in read_json_lines(run / "metrics.jsonl") if row["phase"] == "rl"]
    assert rows == [1, 2, 3, 4]
    # the run has finished for a table, although it made fewer steps
    assert table([run]).rows[0].cells["after"].value == 0.4
    # its best model is evaluated as the run evaluates
    done = CliRunner().invoke(app, ["eval", str(run), "--policy", str(run / "best"), "--episodes", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["num_episodes"] == 2


def test_resumed_it_stays_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "run", monkeypatch, [0.9, 0.1, 0.1, 0.1], patience=2)
    before = counting_runs.weights(run)
    monkeypatch.undo()
    resumed = counting_runs.config(
        num_steps=6, eval=EvalConfig(num_episodes=2, every=1, patience=2), checkpoint_every=4
    )
    train(resumed, run, resume=True)
    rows = [row for row in read_json_lines(run / "metrics.jsonl") if row["phase"] == "eval"]
    if best_of(run)[2] >= 2:  # the evaluations that were made up are made again
        assert counting_runs.weights(run) == before
    assert rows[0]["step"] == 0


@pytest.mark.parametrize(
    ("successes", "found"),
    [([0.1, 0.5, 0.5, 0.2], (1, 0.5, 2)), ([0.7, 0.1], (0, 0.7, 1)), ([0.0], (0, 0.0, 0)), ([0.1, 0.2], (1, 0.2, 0))],
)
def test_of_equal_evaluations_the_first_is_the_best(
    tmp_path: Path, successes: list[float], found: tuple[int, float, int]
) -> None:
    rows = [{"phase": "eval", "step": step, "success": success} for step, success in enumerate(successes)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert best_of(tmp_path) == found


@pytest.mark.parametrize("name", ["keep_best", "patience"])
def test_without_evaluations_during_rl_it_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} compares evaluations during RL: set eval\.every above 0"):
        checked(EvalConfig, {name: 1}, "eval")
