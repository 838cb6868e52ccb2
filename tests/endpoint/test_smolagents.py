"""Agents of smolagents as they are released, on GuessNumber-v0."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from testkit.scripted_engine import ScriptedEngine
from testkit.smollm2 import IN_BFLOAT16, LEARNS_FAST, assert_the_policy_was_sampled, write_shallow_smollm2

from agentgym.endpoint.calls import ChatCall
from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.play import HarnessAgents
from agentgym.endpoint.wire import openai_chat
from agentgym.engine import SamplingParams
from agentgym.registry import make
from agentgym.rollout.record import read_json_lines
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Status, Trajectory

PYTHON = os.environ.get("AGENTGYM_SMOLAGENTS_PYTHON", "")
"""A Python that has smolagents with its extra ``openai``."""


def has_smolagents() -> bool:
    return bool(PYTHON) and not subprocess.run([PYTHON, "-c", "import smolagents"], check=False).returncode


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_smolagents(), reason="set AGENTGYM_SMOLAGENTS_PYTHON to a Python that has it"),
]


def played(agent: str, said: list[str], **settings: int) -> tuple[Trajectory, ScriptedEngine]:
    engine = ScriptedEngine(said)
    env = make("agentgym/GuessNumber-v0", **{"largest": 4, **settings})
    config = HarnessConfig.of({"name": "smolagents", "python": PYTHON, "agent": agent})

    async def play() -> Trajectory:
        agents = HarnessAgents(engine, engine.renderer, SamplingParams(max_new_tokens=512), config)
        try:
            return await agents.play_episode(env, RolloutRequest(task=env.tasks("train")[0], make_agent=agents))
        finally:
            await agents.close()

    return asyncio.run(play()), engine


def called(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def run_in_code(line: str) -> str:
    return f"Thought: I guess.\n<code>\n{line}\n</code>\nObservation: the model goes on here"


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("tool_calling", [called("guess", number=1), called("guess", number=4)]),
        ("code", [run_in_code("print(guess(number=1))"), run_in_code("print(guess(4))")]),
    ],
)
def test_it_plays_by_the_environment_s_tools(agent: str, said: list[str]) -> None:
    trajectory, engine = played(agent, said)  # the number is 4
    assert trajectory.status is Status.COMPLETED, trajectory.error
    assert trajectory.success and trajectory.reward == 1.0
    first, second = trajectory.turns
    assert [reply.text for reply in first.replies] == ["Too low."] and second.reward == 1.0
    assert "Too low." in engine.text(engine.prompts[1])
    # smolagents writes its own messages into the history, so each call begins a segment
    assert [len(segment.turns) for segment in trajectory.segments] == [1, 1]
    for turn, prompt in zip(trajectory.turns, engine.prompts, strict=True):
        assert turn.prompt_ids == prompt
    if agent == "code":  # smolagents' stop text ends completions
        assert engine.text(first.completion.token_ids) == said[0].partition("\nObservation")[0]
    again, _ = played(agent, said)
    assert [turn.prompt_ids for turn in again.turns] == [turn.prompt_ids for turn in trajectory.turns]


def test_an_answer_without_a_call_ends_the_episode() -> None:
    trajectory, _ = played("tool_calling", [called("guess", number=1), called("final_answer", answer="4")])
    assert trajectory.status is Status.COMPLETED and trajectory.success is False, trajectory.error
    assert len(trajectory.turns) == 2


SMALL = """
    env.id=agentgym/GuessNumber-v0 env.kwargs={"largest":2,"max_turns":1} sft.num_demos=0 num_steps=1
    groups_per_step=2 group.group_size=4 group.num_envs=4 sampling.max_new_tokens=40 model.max_context_tokens=2048
    eval.num_episodes=1 eval.base=false harness.name=smolagents harness.options.step_limit=2 credit.estimator=returns
"""


def demonstrations(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return conversations with the first request of smolagents, and one guess each."""
    asked: list[Mapping[str, Any]] = []
    parse = openai_chat.parse

    def kept(body: Mapping[str, Any]) -> ChatCall:
        asked.append(body)
        return parse(body)

    monkeypatch.setattr(openai_chat, "parse", kept)
    assert played("tool_calling", [called("guess", number=1)], largest=2, max_turns=1)[0].turns
    messages = [
        {"role": one["role"], "content": "".join(part["text"] for part in one["content"])}
        for one in asked[0]["messages"]
    ]
    guesses = [
        {"id": "call_0_0", "type": "function", "function": {"name": "guess", "arguments": json.dumps({"number": at})}}
        for at in (1, 2, 1, 2)
    ]
    said = [{"role": "assistant", "content": "", "tool_calls": [guess]} for guess in guesses]
    return [{"messages": [*messages, one], "tools": asked[0]["tools"]} for one in said]


def test_its_rollouts_train_smollm2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_agentgym: Any) -> None:
    pytest.importorskip("gguf")
    model = write_shallow_smollm2(tmp_path / "model")
    demos = tmp_path / "demos.jsonl"
    demos.write_text("".join(json.dumps(one) + "\n" for one in demonstrations(monkeypatch)), encoding="utf-8")
    words = ["train", "smollm2-wiki", *SMALL.split(), f'sft.files=["{demos}"]']
    words += [f"model.path={model}", *LEARNS_FAST, f"harness.options.python={Path(PYTHON).absolute()}"]
    words += ["--run-dir", str(tmp_path / "run"), *IN_BFLOAT16]
    done = warm_agentgym(*words)
    assert done.returncode == 0, done.stderr
    (row,) = (row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl")
    assert sum(row[f"status/{name}"] for name in ("completed", "truncated_turns", "truncated_tokens")) == 8
    assert row["success"] > 0, "four conversations have taught it to guess"
    assert row["trained_tokens"] > 0
    # the probabilities that were recorded as the agent's requests were answered are those of the model that is trained
    assert_the_policy_was_sampled(row)
