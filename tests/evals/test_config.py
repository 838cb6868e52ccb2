"""The options of an evaluation: one class, from which the command and the Python function are made."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agentgym
from agentgym.cli.eval import eval_
from agentgym.cli.eval_suites import SuitesPlan
from agentgym.cli.main import app
from agentgym.errors import CorruptDataError, RunStoppedError, UsageError
from agentgym.evals.config import GROUPS, EvalConfig, read_config

HOUSE = "agentgym/Household-v0"


def test_each_option_can_be_given_in_the_command_and_in_python() -> None:
    names = {part.name for part in fields(EvalConfig)}
    by_word = {"env", "policy", "kwargs", *GROUPS.values()}
    flags = {part.metadata.get("flag", part.name) for part in fields(EvalConfig) if part.name not in by_word}
    assert flags | {"codec", "harness"} <= set(inspect.signature(eval_).parameters)
    assert all(part.metadata["help"].endswith(".") for part in fields(EvalConfig)), "one sentence each"
    assert set(inspect.signature(agentgym.evaluate).parameters) == names - {"scoring"} | {"scorer", "run_dir"}


def test_the_help_shows_each_default() -> None:
    shown = " ".join(CliRunner().invoke(app, ["eval", "--help"], env={"COLUMNS": "400"}).output.split())
    assert all(f"{group}.KEY=VALUE: " in shown for group in GROUPS)
    for text in ("pass^k. [default: 1]", "per turn. [default: 64]", "same time. [default: 32]", "the run's or 50]"):
        assert text in shown
    assert "SWE-bench's own]" in CliRunner().invoke(app, ["convert", "--help"], env={"COLUMNS": "400"}).output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"max_cost": -1.0}, "max_cost must be at least 0, got -1"),
        ({"max_minutes": float("inf")}, "max_minutes must be finite, got inf"),
        ({"temperature": float("nan")}, "temperature must be finite, got nan"),
        ({"repeats": "many"}, "repeats: .*integer.*, got 'many'"),
        ({"prices": "much"}, "--prices much: expected prices per million tokens"),
        ({"chat": ["json"]}, "chat: .*dictionary"),
        ({"chat": {"codek": "json"}}, "did you mean 'chat.codec'"),
        ({"context": {"num_turn": 2}}, "did you mean 'context.num_turns'"),
        ({"verify": {"kind": "judge"}}, "verify.KEY=VALUE is for a policy of several attempts"),
        ({"opponent": "oracel"}, "did you mean 'oracle'"),
    ],
)
def test_a_wrong_option_is_one_line_before_anything_is_played(
    options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        agentgym.evaluate(HOUSE, "oracle", episodes=1, run_dir=tmp_path / "x", **options)
    assert "\n" not in str(refused.value) and not (tmp_path / "x").exists()


def test_limits_hold_in_python_and_are_kept(tmp_path: Path) -> None:
    def slow() -> str:
        return "look"

    with pytest.raises(RunStoppedError, match="the budget of 1e-06 minutes is spent after 1 episode"):
        agentgym.evaluate(HOUSE, slow, episodes=3, num_envs=1, max_minutes=1e-6, max_tokens=9, run_dir=tmp_path / "x")
    kept = json.loads((tmp_path / "x" / "effort.json").read_text())
    assert kept == {"num_envs": 1, "max_tokens": 9}, "a limit that was reached is lifted"


def test_the_kept_file_is_that_of_older_versions(tmp_path: Path) -> None:
    old = {"env": HOUSE, "policy": "oracle", "episodes": 2, "kwargs": {"num_objects": 3}, "scoring": {}}
    (tmp_path / "config.json").write_text(json.dumps({"eval": old}))
    config = read_config(tmp_path, {"eval": EvalConfig})
    assert (config.episodes, config.kwargs, config.max_new_tokens) == (2, {"num_objects": 3}, 64)
    with pytest.raises(CorruptDataError, match="is not an evaluation's configuration"):
        read_config(tmp_path, {"eval_suites": SuitesPlan})
    (tmp_path / "config.json").write_text(json.dumps({"eval": old | {"pace": 2}}))
    with pytest.raises(CorruptDataError, match=r"'pace'.*another version of agentgym may have written it"):
        read_config(tmp_path, {"eval": EvalConfig})
    assert read_config(tmp_path, {"eval": EvalConfig}, ignores_unknown=True) == config
