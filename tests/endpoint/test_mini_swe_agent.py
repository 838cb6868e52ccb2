"""mini-swe-agent as it is released, on an issue of SWE-v0."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testkit.issue_commands import solving_commands
from testkit.scripted_engine import ScriptedEngine
from testkit.smollm2 import IN_BFLOAT16, LEARNS_FAST, assert_the_policy_was_sampled, write_shallow_smollm2

from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.play import HarnessAgents
from agentgym.engine import SamplingParams
from agentgym.envs.code.swe import SWEEnv
from agentgym.rollout.record import read_json_lines
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Status

PYTHON = os.environ.get("AGENTGYM_MINI_SWE_AGENT_PYTHON", "")
"""A Python that has mini-swe-agent; its dependencies clash with those of the tests."""


def has_mini_swe_agent() -> bool:
    return bool(PYTHON) and not subprocess.run([PYTHON, "-c", "import minisweagent"], check=False).returncode


@pytest.mark.slow
@pytest.mark.skipif(not has_mini_swe_agent(), reason="set AGENTGYM_MINI_SWE_AGENT_PYTHON to a Python that has it")
def test_it_solves_an_issue_through_the_endpoint() -> None:
    env = SWEEnv(sandbox="process")
    task = env.tasks("train")[0]
    commands = [*solving_commands(task), "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    engine = ScriptedEngine([f"THOUGHT: next.\n\n```mswea_bash_command\n{command}\n```" for command in commands])
    config = HarnessConfig.of({"name": "mini_swe_agent", "python": PYTHON})

    async def play() -> None:
        agents = HarnessAgents(engine, engine.renderer, SamplingParams(max_new_tokens=4096), config)
        try:
            trajectory = await agents.play_episode(env, RolloutRequest(task=task, make_agent=agents))
        finally:
            await agents.close()
        assert trajectory.status is Status.COMPLETED, trajectory.error
        assert trajectory.success
        assert (trajectory.reward or 0.0) >= 1.0
        (segment,) = trajectory.segments
        assert len(segment.turns) == len(commands)
        assert segment.token_ids == (*engine.prompts[-1], *segment.turns[-1].completion.token_ids)
        assert len({turn.state_key for turn in segment.turns}) > 1

    asyncio.run(play())
    env.close()


ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "benchmarks" / "smollm2" / "harness"
SMALL = """
    num_steps=2 groups_per_step=1 group.group_size=4 group.num_envs=4 sampling.max_new_tokens=32
    model.max_context_tokens=1024 eval.num_episodes=1 eval.base=false sft.num_demos=0 credit.estimator=returns
"""


@pytest.mark.slow
@pytest.mark.skipif(not has_mini_swe_agent(), reason="set AGENTGYM_MINI_SWE_AGENT_PYTHON to a Python that has it")
def test_its_rollouts_train_smollm2(tmp_path: Path, warm_agentgym: Any) -> None:
    pytest.importorskip("gguf")
    demos = tmp_path / "demos.jsonl"
    subprocess.run([sys.executable, str(HARNESS / "make_demos.py"), str(demos), "8"], cwd=ROOT, check=True)
    by_harness = [
        "harness.name=mini_swe_agent", f"harness.options.python={Path(PYTHON).absolute()}",
        f"harness.options.config={HARNESS / 'short.yaml'}", "harness.options.step_limit=2",
    ]  # fmt: skip
    errand = [f"env.id={HARNESS / 'errand_env.py'}:Errand-v0", 'env.kwargs={"sandbox": "process"}']
    train = ["train", "smollm2-wiki", *errand, *by_harness, *SMALL.split()]
    model = write_shallow_smollm2(tmp_path / "model")
    words = [*train, f"model.path={model}", *LEARNS_FAST, *IN_BFLOAT16, f'sft.files=["{demos}"]']
    words += ["--run-dir", str(tmp_path / "run")]
    done = warm_agentgym(*words)
    assert done.returncode == 0, done.stderr
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["status/completed"] + row["status/truncated_turns"] for row in rows] == [4, 4]
    trained = [row for row in rows if row["trained_tokens"]]
    assert trained, "eight conversations have taught it to print the file"
    # the probabilities that were recorded as the agent's requests were answered are those of the model that is trained
    for row in trained:
        assert_the_policy_was_sampled(row)
