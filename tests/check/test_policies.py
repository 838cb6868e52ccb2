"""Scripted policies, and the engine that answers from a function."""

import asyncio
from typing import Literal

import numpy as np
import pytest

from agentgym import Env, Task, ToolCall, ToolEnv, tool
from agentgym.check import ScriptedEngine, noop_action, random_action
from agentgym.engine import Engine, SamplingParams
from agentgym.errors import ClosedError, EngineError
from agentgym.types import FinishReason


class Shelf(ToolEnv):
    def start(self, task: Task) -> str:
        return "On shelf 1 you see mug 12."

    @tool
    def take(self, name: str, how: Literal["gently", "quickly"]) -> str:
        """Take a thing."""
        return f"You take {name} {how}."


class Menu(Shelf):
    def admissible_actions(self) -> tuple[str, ...]:
        return ("take: mug 12; gently",)


class Echo(Env):
    def start(self, task: Task) -> str:
        return "alpha beta"


def test_random_action_speaks_of_what_it_sees() -> None:
    env = Shelf()
    observation, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [random_action(env, observation, rng) for _ in range(50)]
    names = {call.arguments["name"] for action in actions for call in action.calls if isinstance(call, ToolCall)}
    assert names == {"shelf 1", "mug 12"}, "what has a number is a thing"
    assert all(env.parse_action(action.text).calls[0].arguments == action.calls[0].arguments for action in actions)  # type: ignore[union-attr]


def test_random_action_prefers_what_is_admissible() -> None:
    env = Menu()
    observation, _ = env.reset(seed=0)
    assert random_action(env, observation, np.random.default_rng(0)) == env.parse_action("take: mug 12; gently")


def test_random_action_is_a_word_where_there_are_no_tools() -> None:
    env = Echo()
    observation, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    assert {random_action(env, observation, rng).text for _ in range(20)} == {"alpha", "beta"}
    assert random_action(env, (), rng).text == "a"


def test_noop_is_an_invalid_turn_of_a_tool_environment() -> None:
    env = Shelf()
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(noop_action(env))
    assert (reward, terminated, info["is_valid"]) == (0.0, False, False)


def counting(prompt: tuple[int, ...]) -> list[int]:
    return list(range(len(prompt), 100))


def test_engine_cuts_at_stop_tokens_and_limits() -> None:
    async def run() -> None:
        engine = ScriptedEngine(counting, max_context_tokens=10, logprob=-0.25)
        assert isinstance(engine, Engine)
        stopped = await engine.generate([1, 1], SamplingParams(stop_token_ids=(4,)))
        assert (stopped.token_ids, stopped.finish_reason) == ((2, 3, 4), FinishReason.STOP)
        assert stopped.logprobs == (-0.25,) * 3
        limited = await engine.generate([1, 1], SamplingParams(max_new_tokens=2, stop_token_ids=(4,)))
        assert (limited.token_ids, limited.finish_reason) == ((2, 3), FinishReason.LENGTH)
        full = await engine.generate([1] * 8, SamplingParams())
        assert len(full.token_ids) == 2
        with pytest.raises(EngineError, match="fills the context"):
            await engine.generate([1] * 10, SamplingParams())
        assert await engine.score([1], [2, 3]) == (-0.25, -0.25)

    asyncio.run(run())


def test_engine_fails_by_plan_and_notes_its_requests() -> None:
    async def run() -> None:
        engine = ScriptedEngine(counting, fail_requests={1})
        sampling = SamplingParams(max_new_tokens=1, seed=5)
        results = await asyncio.gather(
            *(engine.generate([number], sampling, session_id=str(number)) for number in range(3)),
            return_exceptions=True,
        )
        assert [isinstance(result, EngineError) for result in results] == [False, True, False]
        assert [request.session_id for request in engine.requests] == ["0", "1", "2"]
        assert engine.requests[0].sampling.seed == 5
        await engine.release("1")
        assert engine.released == ["1"]
        await engine.close()
        await engine.close()
        with pytest.raises(ClosedError):
            await engine.generate([1], sampling)

    asyncio.run(run())


def test_engine_answers_carry_the_version_in_force_and_may_overtake() -> None:
    async def run() -> None:
        engine = ScriptedEngine(counting, policy_version=3, delays_s=(0.02, 0.0))
        order: list[int] = []

        async def ask(number: int) -> tuple[int, ...]:
            completion = await engine.generate([1], SamplingParams(max_new_tokens=1))
            order.append(number)
            if number == 1:
                await engine.update_weights(4)
            return completion.policy_versions

        assert list(await asyncio.gather(ask(0), ask(1))) == [(4,), (3,)]
        assert order == [1, 0]
        assert engine.policy_version == 4

    asyncio.run(run())
