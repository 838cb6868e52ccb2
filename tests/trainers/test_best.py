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
from agentgym.trainers.phases.best import best_of
from agentgym.trainers.train import train


def run_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch, successes: list[float], *, num_steps: int = 6, **changes: Any
) -> Path:
    """Train, or resume, with evaluations whose success is given, one after the other."""
    given = iter(successes)

    async def scripted(*args: Any, **kwargs: Any) -> Any:
        return replace(await evaluate(*args, **kwargs), success=next(given))

    plan = EvalConfig(num_episodes=2, every=1, **changes)
    config = counting_runs.config(num_steps=num_steps, eval=plan, checkpoint_every=4)
    with monkeypatch.context() as patch:
        patch.setattr("agentgym.trainers.phases.evaluation.evaluate", scripted)
        train(config, folder, resume=folder.exists())
    assert next(given, None) is None, "as many evaluations as were given"
    return folder


def test_the_best_model_is_kept_and_rl_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "run", monkeypatch, [0.1, 0.5, 0.9, 0.4, 0.9, 0.4], keep_best=True, patience=2)
    assert read_json_object(run / "best.json") == {"step": 2, "success": 0.9}
    assert counting_runs.weights_in(run / "best") != counting_runs.weights(run)
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
    run_with(run, monkeypatch, [0.1, 0.1], patience=2)  # the last one again, and that after RL
    assert counting_runs.weights(run) == before
    assert read_json_object(run / "result.json")["steps_made"] == 2


def test_a_resumed_run_keeps_its_best_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "run", monkeypatch, [0.1, 0.95, 0.2, 0.3, 0.2, 0.1, 0.2], keep_best=True)
    best = counting_runs.weights_in(run / "best")
    run_with(run, monkeypatch, [0.5, 0.6], num_steps=7, keep_best=True)
    assert counting_runs.weights_in(run / "best") == best
    assert read_json_object(run / "best.json") == {"step": 1, "success": 0.95}


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
