"""Environments of verifiers as ours: tasks, tools, replies and rewards, by the package itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_openai import FakeOpenAI, completion

import agentgym
from agentgym.errors import EnvError, EnvTimeoutError, UsageError
from agentgym.types import Message, ToolCall

pytest.importorskip("verifiers.v1", reason="needs the package verifiers (the extra verifiers)")
pytest.importorskip("uv", reason="needs the package uv (the extra verifiers)")

SUMS = '''
import verifiers.v1 as vf


class SumsData(vf.TaskData):
    numbers: list[int]


class SumsState(vf.State):
    num_sums: int = 0


class Abacus(vf.Toolset[vf.ToolsetConfig, SumsState]):
    @vf.tool
    def add(self, first: int, second: int) -> str:
        """Add two numbers."""
        self.state.num_sums += 1
        return str(first + second)


class Sums(vf.Task[SumsData, SumsState]):
    @vf.reward(weight=0.75)
    async def right(self, trace) -> float:
        if "crash" in trace.last_reply:
            raise RuntimeError("the grader fell over")
        return float(trace.last_reply == str(sum(self.data.numbers)))

    @vf.reward(weight=0.25)
    async def by_the_tool(self, trace) -> float:
        return float(trace.state.num_sums > 0)

    @vf.metric
    async def num_sums(self, trace) -> float:
        return trace.state.num_sums

    @classmethod
    def toolsets(cls, config):
        return [Abacus(vf.ToolsetConfig())]


class SumsTaskset(vf.Taskset[Sums, vf.TasksetConfig]):
    def load(self):
        for n in range(10):
            yield Sums(SumsData(prompt=f"What is {n} and {n + 1}?", numbers=[n, n + 1]), self.config.task)


__all__ = ["SumsTaskset"]

if __name__ == "__main__":
    Abacus.run()
'''

RIDDLES = '''
import verifiers.v1 as vf


class Riddle(vf.Task[vf.TaskData]):
    pass


class Riddles(vf.Taskset[Riddle, vf.TasksetConfig]):
    def load(self):
        for n in range(6):
            yield Riddle(vf.TaskData(name=str(n)), self.config.task)


class RiddleEnv(vf.Env[vf.SingleAgentEnvConfig]):
    """Tells whether a guess is too low or too high; pays by the number of guesses."""

    async def run(self, task, agents):
        secret, said, num = int(task.data.name), "Guess my number below 6.", 0
        async with agents.agent.interaction(task) as talk:
            while True:
                heard = await talk.turn(said)
                if heard.terminated:
                    break
                num += 1
                guess = int(heard.last_reply)
                if guess == secret:
                    break
                said = "Higher." if guess < secret else "Lower."
        talk.trace.record_reward("quick", 1.0 / num if not heard.terminated else 0.0)


__all__ = ["Riddles", "RiddleEnv"]
'''

ECHO = """
import asyncio

import verifiers.v1 as vf


class Echo(vf.Task[vf.TaskData]):
    @vf.reward
    async def same(self, trace) -> float:
        if trace.last_reply == "slow":
            await asyncio.sleep(60)
        return float(trace.last_reply == self.data.name)


class Echoes(vf.Taskset[Echo, vf.TasksetConfig]):
    def load(self):
        for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"):
            timeout = vf.TaskTimeout(scoring=0.5)
            yield Echo(vf.TaskData(name=word, prompt=f"Say: {word}", timeout=timeout), self.config.task)


__all__ = ["Echoes"]
"""


@pytest.fixture
def sums(tmp_path: Path) -> Any:
    yield from made(tmp_path / "sums_taskset.py", SUMS)


@pytest.fixture
def riddles(tmp_path: Path) -> Any:
    yield from made(tmp_path / "riddles_taskset.py", RIDDLES)


def made(path: Path, source: str, **kwargs: Any) -> Any:
    path.write_text(source, encoding="utf-8")
    env = agentgym.make("agentgym/Verifiers-v0", taskset=str(path), **kwargs)
    yield env
    env.close()
    sys.modules.pop(path.stem)


@pytest.mark.slow
def test_tools_and_weighted_rewards(sums: agentgym.Env) -> None:
    said, _ = sums.reset(options={"task": 2})
    assert [message.text for message in said] == ["What is 2 and 3?"]
    (add,) = sums.tools
    assert add.name.endswith("add") and set(add.parameters["properties"]) == {"first", "second"}
    replies, reward, terminated, *_ = sums.step(ToolCall(add.name, {"first": 2, "second": 3}))
    assert ([reply.text for reply in replies], reward, terminated) == (["5"], 0.0, False)
    *_, info = sums.step(ToolCall("divide", {"by": 0}))
    assert info["is_valid"] is False
    *_, reward, terminated, truncated, info = sums.step(Message("assistant", "5"))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert {part.name: part.value for part in info["reward_parts"]} == {"right": 0.75, "by_the_tool": 0.25}
    assert info["metrics"] == {"num_sums": 1.0}
    sums.reset(options={"task": 2})
    *_, reward, terminated, truncated, info = sums.step(Message("assistant", "5"))  # at once, without the tool
    assert (reward, terminated, info["success"]) == (0.75, True, False)


def test_a_grader_that_fails_gives_no_reward(sums: agentgym.Env) -> None:
    sums.reset(seed=0)
    with pytest.raises(EnvError, match="the grader fell over"):
        sums.step(Message("assistant", "crash"))


def test_a_grader_that_is_late_gives_no_reward(tmp_path: Path) -> None:
    for env in made(tmp_path / "late_taskset.py", ECHO):
        env.reset(seed=0)
        with pytest.raises(EnvTimeoutError, match="scoring_timeout"):
            env.step(Message("assistant", "slow"))


def test_splits_share_no_task(sums: agentgym.Env) -> None:
    keys = [{task.data["key"] for task in sums.tasks(split)} for split in ("train", "valid", "test")]
    assert [len(of) for of in keys] == [6, 2, 2] and len(set.union(*keys)) == 10
    with pytest.raises(UsageError, match="no task of this taskset"):
        sums.reset(options={"task": agentgym.Task(id="x", split="train", seed=0, data={"key": "none"})})


def test_an_environment_of_its_own_talks_and_pays(riddles: agentgym.Env) -> None:
    said, _ = riddles.reset(options={"task": 3})
    assert said[-1].text == "Guess my number below 6." and riddles.tools == ()
    replies, reward, *_ = riddles.step(Message("assistant", "5"))
    assert ([reply.text for reply in replies], reward) == (["Lower."], 0.0)
    reward, terminated = riddles.step(Message("assistant", "3"))[1:3]
    assert (reward, terminated) == (0.5, True)
    riddles.reset(options={"task": 3})
    with pytest.raises(EnvError, match="invalid literal"):  # its own code raises
        riddles.step(Message("assistant", "no number"))
    riddles.reset(options={"task": 1})  # and the next episode is played
    assert riddles.step(Message("assistant", "1"))[1] == 1.0


def test_its_turn_limit_truncates_and_grades(tmp_path: Path) -> None:
    for env in made(tmp_path / "short_riddles.py", RIDDLES, max_turns=2):
        env.reset(options={"task": 3})
        env.step(Message("assistant", "5"))
        *_, reward, terminated, truncated, info = env.step(Message("assistant", "4"))
        assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)


def test_policies_are_evaluated_in_it(tmp_path: Path) -> None:
    path = tmp_path / "echo_taskset.py"
    path.write_text(ECHO, encoding="utf-8")
    kwargs = {"taskset": str(path)}
    idle = agentgym.evaluate("agentgym/Verifiers-v0", "idle", episodes=2, kwargs=kwargs)
    assert (idle.summary.num_episodes, idle.summary.num_failed, idle.summary.success) == (2, 0, 0.0)
    server = FakeOpenAI(lambda request: completion(request["messages"][-1]["content"].removeprefix("Say: ")))
    try:
        echo = agentgym.evaluate("agentgym/Verifiers-v0", f"openai:{server.url}", episodes=2, kwargs=kwargs)
    finally:
        server.close()
    assert (echo.summary.num_episodes, echo.summary.num_failed, echo.summary.success) == (2, 0, 1.0)


def test_wrong_settings(tmp_path: Path) -> None:
    def refused(match: str, **kwargs: Any) -> None:
        with pytest.raises(UsageError, match=match):
            agentgym.make("agentgym/Verifiers-v0", **kwargs)

    refused("no file", taskset=str(tmp_path / "nothing.py"))
    refused("nowhere", taskset="nowhere")
    path = tmp_path / "refused_taskset.py"
    path.write_text(RIDDLES, encoding="utf-8")
    refused("runs the model's code", taskset=str(path), harness="bash")
    refused("difficulty", taskset=str(path), config={"taskset": {"difficulty": "hard"}})
    refused("2 tasks", taskset=str(path), num_tasks=2)
