"""Stop texts: where completions end, what agents see of them, and which tokens are trained."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.drawing_engine import DrawingEngine
from testkit.endpoint_clients import anthropic_client, check_linear, openai_client, served
from testkit.scripted_engine import ScriptedEngine
from testkit.tokenizers_for_tests import HERMES, THINKING

from agentgym.endpoint.calls import ChatCall
from agentgym.endpoint.session import EndpointPolicy, EpisodeSession, stopped
from agentgym.engine import SamplingParams
from agentgym.types import FinishReason, Message

REACT = "Thought: open it.\nAction: open fridge\nObservation: it is empty"
TEXTS = st.text(alphabet="ab \nOgo:é漢🙂", min_size=0, max_size=30)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, stops=st.lists(TEXTS.filter(bool), min_size=1, max_size=3), at=st.integers(0, 30))
def test_the_tokens_are_those_of_an_engine_that_stops_while_it_samples(text: str, stops: list[str], at: int) -> None:
    stops = [*stops, text[at : at + 3] or "b"]
    engine = DrawingEngine([text], HERMES)
    renderer = engine.renderer
    completion = asyncio.run(engine.generate((1,), SamplingParams()))
    ids = completion.token_ids
    ends = [num for num in range(1, len(ids) + 1) if any(stop in renderer.text_of(ids[:num]) for stop in stops)]
    found = stopped(completion, stops, renderer)
    assert (found is not None) == bool(ends)
    if found is not None:
        assert found.completion.token_ids == ids[: ends[0]]
        assert found.completion.logprobs == completion.logprobs[: ends[0]]
        assert found.completion.finish_reason is FinishReason.STOP
        assert renderer.text_of(ids).startswith(found.text + found.stop)
        assert not any(stop in found.text for stop in stops)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("returned", ["", "Observation:"], ids=["without the stop text", "with it put back"])
def test_chat_completions_end_at_the_first_stop_and_go_on_in_one_segment(is_stream: bool, returned: str) -> None:
    async def use(url: str, session: EpisodeSession) -> None:
        client = openai_client(url)
        messages: list[Any] = [{"role": "user", "content": "Where is the milk?"}]
        for stop in (["empty", "Observation:"], "Observation:"):
            if is_stream:
                async with client.chat.completions.stream(model="m", messages=messages, stop=stop) as stream:
                    done: Any = await stream.get_final_completion()
            else:
                done = await client.chat.completions.create(model="m", messages=messages, stop=stop, logprobs=True)
                rows = done.choices[0].logprobs.content
                assert "".join(row.token for row in rows).startswith("Thought: open it.\nAction: open fridge\n")
                assert "Observation:" not in "".join(row.token for row in rows)
            assert done.choices[0].finish_reason == "stop"
            said = done.choices[0].message.content
            assert said == "Thought: open it.\nAction: open fridge"
            messages += [{"role": "assistant", "content": said + returned}]
            messages += [{"role": "user", "content": "Observation: nothing"}]

    _, session = served(use, REACT)
    check_linear(session)


def test_the_tokens_of_a_stopped_completion_are_those_that_were_sampled() -> None:
    engine = ScriptedEngine([REACT, "It is in the fridge."])
    policy = EndpointPolicy(engine=engine, renderer=engine.renderer, sampling=SamplingParams(), window_tokens=4096)
    session = EpisodeSession("s", policy, 0, 20, lambda: "state")

    async def run() -> None:
        first = Message("user", "Where is the milk?")
        answer = await session.answer(ChatCall(messages=(first,), stops=("Observation:",)))
        assert (answer.text, answer.stop, answer.is_cut) == (
            "Thought: open it.\nAction: open fridge",
            "Observation:",
            False,
        )
        said = Message("assistant", answer.text, answer=answer.text)
        await session.answer(ChatCall(messages=(first, said, Message("user", "empty"))))

    asyncio.run(run())
    stop, last = session.graph.sampled
    sampled = asyncio.run(ScriptedEngine([REACT]).generate((), SamplingParams()))
    num_kept = len(stop.completion.token_ids)
    assert stop.completion.token_ids == sampled.token_ids[:num_kept]
    assert stop.completion.logprobs == sampled.logprobs[:num_kept]
    assert engine.text(stop.completion.token_ids).endswith("\nObservation:")
    # what follows is rendered after the sampled tokens, as after a completion that the token limit ended
    assert engine.prompts[1] == (*stop.tokens, *last.added_ids)
    assert engine.text(last.added_ids).startswith("<|im_end|>\n<|im_start|>user\nempty<|im_end|>")
    assert stop.segment == last.segment


@pytest.mark.parametrize("is_stream", [False, True])
def test_anthropic_names_the_stop_sequence(is_stream: bool) -> None:
    async def use(url: str, session: EpisodeSession) -> tuple[str, ...]:
        asked: Any = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello?"}]}
        asked["stop_sequences"] = ["Observation:", "Calling tools:"]
        client = anthropic_client(url)
        if is_stream:
            async with client.messages.stream(**asked) as stream:
                done: Any = await stream.get_final_message()
        else:
            done = await client.messages.create(**asked)
        return done.content[0].text, done.stop_reason, done.stop_sequence

    found, _ = served(use, REACT)
    assert found == ("Thought: open it.\nAction: open fridge", "stop_sequence", "Observation:")


def test_a_call_before_the_stop_is_a_call_and_one_cut_by_it_is_not() -> None:
    async def use(url: str, session: EpisodeSession) -> tuple[str, str, Any]:
        asked: Any = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "?"}]}
        asked["tools"] = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
        client = anthropic_client(url)
        after: Any = await client.messages.create(**asked, stop_sequences=["END"])
        inside: Any = await client.messages.create(**asked, stop_sequences=["fridge"])
        return after.stop_reason, inside.stop_reason, inside.content[0].text

    found, _ = served(use, '<tool_call>{"name": "look", "arguments": {"at": "the fridge"}}</tool_call>END')
    assert found == ("tool_use", "stop_sequence", '{"name": "look", "arguments": {"at": "the')


def test_stop_texts_in_thinking_do_not_count() -> None:
    engine = DrawingEngine(["<think>\nObservation: none\n</think>\n\nI look. Observation: more"], THINKING)
    completion = asyncio.run(engine.generate((1,), SamplingParams()))
    found = stopped(completion, ["Observation:"], engine.renderer)
    assert found is not None and found.text.endswith("I look. ")
    unfinished = DrawingEngine(["<think>\nObservation: none"], THINKING)
    completion = asyncio.run(unfinished.generate((1,), SamplingParams()))
    assert stopped(completion, ["Observation:"], unfinished.renderer) is None


def test_empty_stop_texts_are_refused() -> None:
    import openai

    async def use(url: str, session: EpisodeSession) -> None:
        with pytest.raises(openai.BadRequestError, match="stop must hold texts that are not empty"):
            await openai_client(url).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "?"}], stop=["a", ""]
            )

    served(use, REACT)
