"""Qwen Code, a command-line agent from npm, unmodified, in the Docker sandbox of SWE-v0."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from testkit.issue_commands import solving_commands
from testkit.qwen_code import COMMAND, FOLDER, shell_calls
from testkit.scripted_engine import ScriptedEngine
from testkit.smollm2 import IN_BFLOAT16, LEARNS_FAST, assert_the_policy_was_sampled, write_shallow_smollm2

from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.play import HarnessAgents
from agentgym.engine import SamplingParams
from agentgym.envs.code.swe import SWEEnv
from agentgym.rollout.record import read_json_lines
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Status

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not FOLDER, reason="set AGENTGYM_QWEN_CODE to a node_modules that has it, or make test-agents"),
]


def test_it_solves_an_issue_in_the_docker_sandbox() -> None:
    env = SWEEnv(sandbox="docker")
    task = env.tasks("train")[0]
    said = shell_calls(solving_commands(task))
    engine = ScriptedEngine(said)
    engine.max_context_tokens = 400_000  # its prompt is 75 kB, and the tests' tokenizer knows few words
    config = HarnessConfig.of({"name": "sandbox_command", "command": COMMAND, "folder": FOLDER})

    async def play() -> None:
        agents = HarnessAgents(engine, engine.renderer, SamplingParams(max_new_tokens=4096), config)
        try:
            trajectory = await agents.play_episode(env, RolloutRequest(task=task, make_agent=agents))
        finally:
            await agents.close()
        assert trajectory.status is Status.COMPLETED, trajectory.error
        assert trajectory.success and (trajectory.reward or 0.0) >= 1.0
        (segment,) = trajectory.segments
        assert len(segment.turns) == len(said)
        assert segment.token_ids == (*engine.prompts[-1], *segment.turns[-1].completion.token_ids)
        assert "Exit Code: 0" in engine.text(segment.turns[1].prompt_ids)

    asyncio.run(play())
    env.close()


@pytest.mark.slow
def test_its_rollouts_train_smollm2(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    model = write_shallow_smollm2(tmp_path / "model")
    small = ["group.group_size=2", "group.num_envs=2", "eval.num_episodes=1", f"model.path={model}"]
    small += [*LEARNS_FAST, "sft.num_epochs=5", *IN_BFLOAT16]
    command = ["bash", str(ROOT / "benchmarks/smollm2/qwen_code/train.sh"), FOLDER, str(tmp_path / "run"), *small]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = (row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl")
    assert row["status/completed"] + row["status/truncated_turns"] == 2
    assert row["num_calls"] > 0, "four conversations have taught it to call Qwen Code's shell"
    assert row["trained_tokens"] > 0
    # the probabilities that were recorded as the agent's requests were answered are those of the model that is trained
    assert_the_policy_was_sampled(row)
