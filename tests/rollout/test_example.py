"""A worked example at the beginning of every prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import pytest
from testkit.counting_env import Counting
from testkit.tokenizers_for_tests import trained

from agentgym.check.policies import ScriptedEngine
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import ConfigError, UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import ModelAgent
from agentgym.rollout.context import ContextConfig, worked_example
from agentgym.types import Message, Observation

RENDERER = ChatRenderer(trained())


def first_prompt(context: ContextConfig) -> str:
    """Return the first prompt of an episode, as the engine gets it."""
    env, prompts = Counting(), []

    def answer(prompt: tuple[int, ...]) -> list[int]:
        prompts.append(str(trained().decode(list(prompt))))
        return [RENDERER.turn_end_ids[0]]

    observation, _ = env.reset(seed=1)
    agent = ModelAgent(ScriptedEngine(answer), RENDERER, SamplingParams(max_new_tokens=4), 0, context)
    agent.begin(observation, env.tools)
    asyncio.run(agent.decide())
    return prompts[0]


def test_the_example_is_the_oracles_episode_up_to_an_action() -> None:
    messages = worked_example(Counting(), 2)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[2].text == "The count is 1."
    assert worked_example(Counting(), 2) == messages
    assert worked_example(Counting(), 3)[0] != messages[0], "a task that takes so many turns"


def test_prompts_begin_with_it_in_the_models_own_format() -> None:
    context = ContextConfig(example_turns=2).with_example(Counting())
    plain, shown = first_prompt(ContextConfig()), first_prompt(context)
    call = RENDERER.action_text(worked_example(Counting(), 1)[1], Counting().tools)
    assert "<tool_call>" in call and shown.count(call) == plain.count(call) + 2
    assert shown.index("The count is 1.") < shown.rindex("Count to")
    tail = plain[plain.rindex("Count to") :]
    assert shown.endswith(tail)


def test_it_survives_the_file_beside_a_model() -> None:
    context = ContextConfig(example_turns=1).with_example(Counting())
    read = ContextConfig().changed(json.loads(json.dumps(asdict(context))))
    assert first_prompt(read) == first_prompt(context)
    assert read.with_example(Counting()) is read, "it is kept, not played again"


def oracle_of(oracle: Callable[[Counting], Message], env: Env, seen: Observation) -> Message:
    assert seen and isinstance(env, Counting)
    return oracle(env)


def test_what_cannot_be_shown_is_refused() -> None:
    class NoOracle(Counting):
        def oracle(self) -> Message:
            return super(Counting, self).oracle()

    with pytest.raises(UsageError, match=r"example_turns=1 shows what the oracle of .* does, and it has none: write"):
        worked_example(NoOracle(), 1)
    act = partial(oracle_of, Counting.oracle)
    assert worked_example(NoOracle(), 2, act) == worked_example(Counting(), 2)
    with pytest.raises(UsageError, match="example_turns=9: no episode of NoOracle"):
        worked_example(NoOracle(), 9, act)
    with pytest.raises(UsageError, match="example_turns=9: no episode of the oracle"):
        worked_example(Counting(), 9)
    with pytest.raises(ConfigError, match=r"needs context\.policy=full"):
        ContextConfig(policy="window", example_turns=1)
