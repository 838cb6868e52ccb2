"""Harnesses as users name them: evaluation by a model, commands, limits."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from testkit.counting_runs import config
from testkit.drawing_engine import DrawingEngine
from testkit.tokenizers_for_tests import HERMES
from typer.testing import CliRunner

from agentgym.api.run_settings import run_settings
from agentgym.cli.main import app
from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.play import HarnessAgents
from agentgym.engine import SamplingParams
from agentgym.registry import make
from agentgym.rollout.request import RolloutRequest
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.train import train
from agentgym.types import Status, Trajectory

LOOK = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
AGENT = """
import json, os, sys, urllib.request

def post(url, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)

base = os.environ["OPENAI_BASE_URL"]
messages = [{"role": "user", "content": sys.argv[1]}]
for _ in range(int(sys.argv[2])):
    message = post(base + "/chat/completions", {"model": "m", "messages": messages})["choices"][0]["message"]
    messages.append(message)
    said = post(base[:-3] + "/tools/look", {})["content"]
    messages.append({"role": "user", "content": said})
sys.exit(int(sys.argv[3]))
"""


def by_command(tmp_path: Path, calls: int, code: int, **settings: Any) -> Trajectory:
    script = tmp_path / "agent.py"
    script.write_text(AGENT, encoding="utf-8")
    command = f"{sys.executable} {script} {{instruction}} {calls} {code}"
    engine = DrawingEngine([LOOK], HERMES)
    engine.max_context_tokens = 32_768
    env = make("agentgym/Household-v0", max_turns=8)
    given = HarnessConfig.of({"name": "command", "command": command, **settings})
    agents = HarnessAgents(engine, engine.renderer, SamplingParams(max_new_tokens=64), given)

    async def play() -> Trajectory:
        try:
            return await agents.play_episode(env, RolloutRequest(task=env.tasks("train")[0], make_agent=agents))
        finally:
            await agents.close()

    return asyncio.run(play())


def test_a_command_plays(tmp_path: Path) -> None:
    played = by_command(tmp_path, calls=3, code=0)
    assert played.status is Status.COMPLETED and len(played.turns) == 3 and len(played.segments) == 1
    assert all(turn.completion.token_ids for turn in played.turns)
    assert all("room" in turn.replies[0].text or turn.replies for turn in played.turns)


def test_a_command_that_fails_gives_no_reward(tmp_path: Path) -> None:
    played = by_command(tmp_path, calls=1, code=3)
    assert played.status is Status.ENV_ERROR and played.reward is None and "code 3" in str(played.error)
    assert played.failed_part == "agent"
    # a command that cannot end in time: a quick machine runs the agent above in less than any limit worth testing
    slow = by_command(tmp_path, calls=1, code=0, command="sleep 60", timeout_s=0.05)
    assert slow.status is Status.TIMEOUT and slow.reward is None
    assert slow.failed_part == "agent"
    assert slow.error == "harness command took more than 0.05 s; set harness.timeout_s higher if that is too short"


def test_a_command_that_has_no_completion_shows_its_output(tmp_path: Path) -> None:
    silent = by_command(tmp_path, calls=0, code=0, command="echo no model is set")
    assert silent.status is Status.ENV_ERROR and silent.reward is None and silent.failed_part == "agent"
    assert silent.error == "the agent's command ended before it had a completion; it printed: no model is set"


def test_a_process_in_the_background_does_not_hold_a_command_up(tmp_path: Path) -> None:
    agent = f"{sys.executable} {tmp_path / 'agent.py'} {{instruction}} 1 0"
    # the process in the background keeps the command's output open
    played = by_command(tmp_path, calls=1, code=0, command=f"sleep 3600 & {agent}", timeout_s=60.0)
    assert played.status is Status.COMPLETED and len(played.turns) == 1


def test_completions_are_limited(tmp_path: Path) -> None:
    played = by_command(tmp_path, calls=5, code=0, max_calls=2)
    assert played.status is Status.TRUNCATED_TURNS and len(played.turns) == 2


@pytest.mark.slow
def test_evaluation_by_a_harness_equals_evaluation_without(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(apply_overrides(config(), ("num_steps=1", "harness.name=openai_loop")), run_dir)
    settings = run_settings(str(run_dir))
    assert settings is not None and settings.plan["harness"]["name"] == "openai_loop"
    rows = []
    for name, arguments in (("as-the-run", ()), ("plain", ("harness.name=",))):
        out = tmp_path / name
        command = ["eval", str(run_dir), "--num-envs", "1", "--run-dir", str(out), *arguments]
        said = CliRunner().invoke(app, command)
        assert said.exit_code == 0, said.output
        rows.append([json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()])
    assert [row["return"] for row in rows[0]] == [row["return"] for row in rows[1]]
    assert [row["num_turns"] for row in rows[0]] == [row["num_turns"] for row in rows[1]]


def test_wrong_harnesses_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    for arguments, told in (
        (["--harness", "openai_lop"], "openai_loop"),
        (["--harness", "openai_loop"], "needs a model whose tokens agentgym samples"),
        (["harness.max_calls=3"], "needs --harness NAME"),
        (["--harness", "command", "harness.comand=x"], "comand"),
        (["--harness", "command"], "harness.command is empty"),
        (["--harness", "sandbox_command"], "harness.command is empty"),
        (["--harness", "command", "harness.command=agent {instructions}"], "names {instructions}, which is not filled"),
        (["--harness", "command", "harness.command={folder}/agent"], "names {folder}, which is not filled in"),
    ):
        said = CliRunner().invoke(app, ["eval", "agentgym/Maze-v0", "--policy", "random", *arguments])
        assert said.exit_code == 2 and told in said.output, said.output
