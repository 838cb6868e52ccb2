"""Our environments in verifiers, by its own rollouts and command."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_openai import FakeOpenAI

import agentgym
from agentgym.errors import UsageError
from agentgym.types import ToolCall

vf = pytest.importorskip("verifiers.v1", reason="needs the package verifiers (the extra verifiers)")

from agentgym.interop.verifiers_env import load_environment  # noqa: E402  (needs verifiers)

HOUSE = "agentgym/Household-v0"

FAILING = '''
from agentgym import ToolEnv, register, tool


class Failing(ToolEnv):
    """Pays once, then its wheel comes off."""

    max_turns = 4

    def start(self, task):
        return "Turn the wheel."

    @tool
    def turn_wheel(self) -> str:
        """Turn it."""
        self.award(1.0)
        if self.turn == 2:
            raise RuntimeError("the wheel came off")
        return "It turns."


register("Failing-v0", Failing)
'''


def said(*calls: ToolCall, text: str | None = None) -> dict[str, Any]:
    """A whole completion, as verifiers checks it."""
    listed = [
        {"id": f"id-{n}", "type": "function", "function": {"name": c.name, "arguments": json.dumps(dict(c.arguments))}}
        for n, c in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, "tool_calls": listed or None}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if listed else "stop"}
    return {"id": "a", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice]}


@contextmanager
def served(scripts: list[list[dict[str, Any]]], openings: list[str]) -> Iterator[FakeOpenAI]:
    """A model that answers an episode's n-th request by the n-th line of its script, told by the first message."""

    def play(request: dict[str, Any]) -> Any:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        return scripts[openings.index(request["messages"][0]["content"])][turn]

    server = FakeOpenAI(play)
    try:
        yield server
    finally:
        server.close()


def episodes(env: Any, server: FakeOpenAI, num: int) -> list[Any]:
    async def run() -> list[Any]:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="NO_KEY")
        context = vf.ModelContext(model="scripted", client=client)
        async with env.serving():
            return [await env.run_episode(task, context) for task in env.taskset.take(num)]

    return asyncio.run(run())


def played_here(split: str, num: int) -> tuple[list[list[dict[str, Any]]], list[str], list[float]]:
    """The expert's completions in tasks of the household, with one look too many; first messages and returns."""
    scripts, openings, returns = [], [], []
    local = agentgym.make(HOUSE)
    for index in range(num):
        begun, _ = local.reset(options={"task": index, "split": split}, seed=local.tasks(split)[index].seed)
        script: list[dict[str, Any]] = []
        total, done = 0.0, False
        while not done:
            calls = [ToolCall("look")] if len(script) == 1 else list(local.oracle().calls)
            script.append(said(*(call for call in calls if isinstance(call, ToolCall))))
            *_, reward, terminated, truncated, info = local.step(calls)  # type: ignore[arg-type]
            total, done = total + reward, terminated or truncated
        assert info["success"]
        scripts.append(script)
        openings.append(begun[0].text)
        returns.append(total)
    return scripts, openings, returns


def test_rewards_equal_those_in_process() -> None:
    scripts, openings, returns = played_here("valid", 5)
    env = load_environment(HOUSE, split="valid")
    with served(scripts, openings) as server:
        played = episodes(env, server, 5)
    assert [episode.ok for episode in played] == [True] * 5
    traces = [episode.traces[0] for episode in played]
    assert [trace.reward for trace in traces] == returns
    assert [trace.metrics["num_env_turns"] for trace in traces] == [len(script) for script in scripts]
    assert all(trace.metrics["success"] == trace.metrics["reward_outcome"] == 1.0 for trace in traces)
    assert {tool.name for tool in traces[0].tools} == {spec.name for spec in agentgym.make(HOUSE).tools}
    assert traces[0].num_branches == 1  # every request continues the one before


def test_a_failure_is_an_error_and_no_reward(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")
    env = load_environment(f"{tmp_path / 'failing.py'}:Failing-v0")
    with served([[said(ToolCall("turn_wheel"))] * 2], ["Turn the wheel."]) as server:
        (episode,) = episodes(env, server, 1)
    (trace,) = episode.traces
    assert not episode.ok and not trace.ok
    assert trace.last_error.type == "EnvError" and "the wheel came off" in trace.last_error.message
    assert trace.stop_condition == "env_error"
    assert trace.rewards == {} and trace.metrics == {}


def test_a_model_that_fails_is_the_providers_error() -> None:
    server = FakeOpenAI(lambda request: 400)
    try:
        (episode,) = episodes(load_environment(HOUSE), server, 1)
    finally:
        server.close()
    assert episode.traces[0].last_error.type == "ProviderError" and episode.traces[0].rewards == {}


def test_its_turn_limit_ends_an_episode_that_keeps_its_reward() -> None:
    env = load_environment("agentgym/GuessNumber-v0")
    env.config.agent.max_turns = 2
    opening = agentgym.make("agentgym/GuessNumber-v0").reset(options={"task": 0}, seed=0)[0][0].text
    with served([[said(ToolCall("guess", {"number": 0}))] * 2], [opening]) as server:
        (episode,) = episodes(env, server, 1)
    (trace,) = episode.traces
    assert episode.ok and trace.stop_condition == "max_turns"
    assert (trace.reward, trace.metrics["num_env_turns"], trace.metrics["success"]) == (0.0, 2.0, 0.0)


def test_its_command_evaluates_ours(tmp_path: Path) -> None:
    scripts, openings, returns = played_here("train", 2)
    command = [
        str(Path(sys.executable).parent / "vf-eval"), "agentgym_verifiers", "--env.taskset.env-id", HOUSE,
        "--env.agent.runtime.type", "subprocess", "-m", "scripted", "--select.limit", "2", "--no-rich", "--no-push",
    ]  # fmt: skip
    given = {**os.environ, "PYTHONPATH": str(Path(agentgym.__file__).parent.parent)}
    with served(scripts, openings) as server:
        command += ["--client.base-url", server.url]
        done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = tmp_path.rglob("traces.jsonl")
    rows = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    scores = {row["task"]["data"]["task_index"]: row["traces"][0]["rewards"]["episode_return"]["score"] for row in rows}
    assert [scores[0], scores[1]] == returns


def test_wrong_environments() -> None:
    with pytest.raises(UsageError, match="unknown environment"):
        load_environment("agentgym/Nowhere-v0")
