"""Thinking: its tokens are counted apart, and it can have a budget of its own."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from testkit.tokenizers_for_tests import HERMES, trained

from agentgym.check.policies import ScriptedEngine
from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError, EngineError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.thinking_budget import generate_in_budget
from agentgym.types import EMPTY_COMPLETION, Completion, FinishReason

RENDERER = ChatRenderer(trained())
PROMPT = (1, 2, 3)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(trained().encode(text, add_special_tokens=False))


def completion(token_ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Completion:
    versions = (0,) * len(token_ids)
    return Completion(token_ids=token_ids, logprobs=logprobs, policy_versions=versions, finish_reason=FinishReason.STOP)


def sampled(text: str, **sampling: Any) -> tuple[Completion, int]:
    """Return what a model that would say ``text`` says within a budget, and the number of requests."""
    said = [*ids_of(text), RENDERER.turn_end_ids[0]]
    num_requests = 0

    def answer(prompt: tuple[int, ...]) -> list[int]:
        nonlocal num_requests
        num_requests += 1
        return said[len(prompt) - len(PROMPT) :]

    params = SamplingParams(stop_token_ids=RENDERER.turn_end_ids, **sampling)
    completion = asyncio.run(generate_in_budget(ScriptedEngine(answer), RENDERER, PROMPT, params, "s"))
    assert len(completion.token_ids) == len(completion.logprobs) == len(completion.policy_versions)
    return completion, num_requests


def test_thinking_tokens_are_those_up_to_the_closing_mark() -> None:
    thinking, answer = "<think>left or right?</think>", "go left"
    count = RENDERER.num_thinking_tokens
    assert count(ids_of(thinking + answer)) == len(ids_of(thinking))
    assert count(ids_of("<think>left or")) == len(ids_of("<think>left or"))
    assert count(ids_of(answer)) == count(()) == 0
    opened = ChatRenderer(trained(HERMES.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")))
    assert opened.num_thinking_tokens(ids_of("left?</think>right")) == len(ids_of("left?</think>"))


def test_a_thinking_budget_leaves_the_answer_its_own() -> None:
    text = "<think>left or right?</think>go left and open it"
    num_thinking, num_answer = len(ids_of("<think>left or right?</think>")), len(ids_of("go left and open it")) + 1
    whole = [*ids_of(text), RENDERER.turn_end_ids[0]]
    completion, num_requests = sampled(text, max_new_tokens=num_answer, max_thinking_tokens=num_thinking + 2)
    assert (list(completion.token_ids), num_requests) == (whole, 2)
    assert completion.finish_reason is FinishReason.STOP
    # what follows the thinking within its budget counts as answer
    completion, _ = sampled(text, max_new_tokens=num_answer - 1, max_thinking_tokens=num_thinking + 2)
    assert completion.finish_reason is FinishReason.LENGTH
    assert list(completion.token_ids) == whole[: num_thinking + num_answer - 1]


def test_thinking_beyond_its_budget_ends_the_turn() -> None:
    text = "<think>left or right or back to the middle of the room?</think>go"
    completion, num_requests = sampled(text, max_new_tokens=64, max_thinking_tokens=5)
    assert (len(completion.token_ids), num_requests) == (5, 1)
    assert completion.finish_reason is FinishReason.LENGTH
    message = RENDERER.read(completion.token_ids, ())
    assert (message.text, message.calls) == ("", ()) and message.thinking


def test_answers_without_thinking_have_the_answers_budget() -> None:
    text = "go to the fridge and open it and look into the room"
    completion, _ = sampled(text, max_new_tokens=6, max_thinking_tokens=4)
    assert len(completion.token_ids) == 6
    assert sampled("go", max_new_tokens=6, max_thinking_tokens=40)[1] == 1


@pytest.mark.parametrize("thinking", ["<think>left?</think>", ""])
def test_a_thinking_budget_that_is_left_over_is_not_the_answers(thinking: str) -> None:
    text = "go left and open it, then go right and open it too"
    num_thinking, most = len(ids_of(thinking)), 5
    assert len(ids_of(text)) > most
    completion, _ = sampled(thinking + text, max_new_tokens=most, max_thinking_tokens=200)
    assert completion.token_ids == ids_of(thinking + text)[: num_thinking + most]
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_thinking_tokens must be at least 0, got -1"):
        SamplingParams(max_thinking_tokens=-1)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "the engine returned NoneType, expected agentgym.types.Completion"),
        (EMPTY_COMPLETION, "the engine sampled no token"),
        (completion((1, 2), (-0.1, float("nan"))), "a log-probability of nan, expected finite numbers up to 0"),
        (completion((1, 2), (-0.1, 0.5)), "a log-probability of 0.5, expected finite numbers up to 0"),
        (completion((1, 2), (-0.1, -float("inf"))), "a log-probability of -inf, expected finite numbers up to 0"),
    ],
)
def test_what_no_engine_may_sample_is_a_failure_of_the_engine(made: Any, words: str) -> None:
    class Wrong(ScriptedEngine):
        async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session_id: str = "") -> Any:
            return made

    with pytest.raises(EngineError, match=re.escape(words)):
        asyncio.run(generate_in_budget(Wrong(lambda prompt: []), RENDERER, PROMPT, SamplingParams(), "s"))
