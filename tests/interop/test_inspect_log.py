"""An evaluation as inspect_ai's own reader and command see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import agentgym
from agentgym import Message, Task, ToolCall, ToolEnv, tool
from agentgym.evals.episodes import read_groups
from agentgym.interop.recorded import read_recorded

pytest.importorskip("inspect_ai", reason="needs the package inspect-ai (the extra inspect)")


class Sometimes(ToolEnv):
    """Fails in every other task."""

    def start(self, task: Task) -> str:
        self.number = int(task.id.rpartition("-")[2])
        return f"Task {self.number}."

    @tool
    def press(self) -> str:
        """Press."""
        if self.number % 2:
            raise RuntimeError("the wheel came off")
        self.award(0.25, "style", "process")
        self.finish(1.0)
        return "Pressed."

    def oracle(self) -> Message:
        return self.parse_action("press")


def written(env: type[ToolEnv] | str, folder: Path, episodes: int, policy: str = "oracle") -> Path:
    from agentgym.interop.inspect_log import write_inspect_log

    agentgym.evaluate(env, policy, episodes=episodes, run_dir=folder)
    path = folder / "log.eval"
    assert write_inspect_log(read_recorded(folder), path) == episodes
    return path


def test_messages_and_scores_are_the_episodes(tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log

    path = written("agentgym/Household-v0", tmp_path / "run", 4)
    log = read_eval_log(str(path))
    assert log.eval.task == "agentgym/Household-v0" and log.eval.model.endswith("oracle")
    assert log.results is not None and log.results.scores[0].metrics["mean"].value == 1.0
    groups = read_groups(tmp_path / "run")
    assert log.samples is not None and len(log.samples) == len(groups) == 4
    for sample, group in zip(log.samples, groups, strict=True):
        (one,) = group.trajectories
        assert sample.id == one.task.id and sample.error is None
        assert sample.scores is not None and sample.scores["success"].value == 1.0
        assert sample.scores["reward"].value == pytest.approx(one.reward)
        tools = [message.text for message in sample.messages if message.role == "tool"]
        assert tools == [reply.text for turn in one.turns for reply in turn.replies]
        calls = [call.function for message in sample.messages for call in getattr(message, "tool_calls", None) or ()]
        made = [call.name for turn in one.turns for call in turn.action.calls if isinstance(call, ToolCall)]
        assert calls == made


def test_a_failure_of_the_infrastructure_is_an_error_and_no_score(tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log

    log = read_eval_log(str(written(Sometimes, tmp_path / "run", 4)))
    assert log.samples is not None and log.results is not None
    failed = [sample for sample in log.samples if sample.error is not None]
    assert len(failed) == 2 and all(sample.scores is None for sample in failed)
    assert all("wheel" in sample.error.message for sample in failed if sample.error is not None)
    (success, reward) = log.results.scores
    assert success.metrics["mean"].value == 1.0 and success.unscored_samples == 2
    assert reward.metrics["mean"].value == 1.25
    good = next(sample for sample in log.samples if sample.scores is not None)
    assert good.scores["reward_style"].value == 0.25


def test_its_own_command_opens_the_log(tmp_path: Path) -> None:
    path = written("agentgym/GuessNumber-v0", tmp_path / "run", 3, "random")
    inspect = [sys.executable, "-m", "inspect_ai"]
    dumped = subprocess.run([*inspect, "log", "dump", str(path)], capture_output=True, text=True, check=True)
    assert len(json.loads(dumped.stdout)["samples"]) == 3
    bundle = tmp_path / "site"
    command = [*inspect, "view", "bundle", "--log-dir", str(path.parent), "--output-dir", str(bundle)]
    subprocess.run(command, capture_output=True, check=True)
    assert (bundle / "index.html").is_file() and list(bundle.rglob("log.eval"))
