"""Parameters that the model behind an endpoint refuses, and accounts without credit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from testkit.fake_openai import FakeOpenAI, completion

from agentgym.engine import SamplingParams
from agentgym.errors import EngineError, UsageError
from agentgym.trainers.engines.openai.endpoint import Endpoint
from agentgym.trainers.engines.openai.http import OpenAIClient
from agentgym.trainers.engines.openai.wire import read_answer
from agentgym.types import FinishReason

SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}}}


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    made = FakeOpenAI(lambda body: completion("Hello."))
    yield made
    made.close()


def ask(server: FakeOpenAI, times: int = 1, schema: Any = None, **sampling: Any) -> tuple[list[float], list[str]]:
    """Ask for completions one after the other; return the waits and the notes."""
    waits: list[float] = []
    notes: list[str] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    async def run() -> None:
        client = OpenAIClient(Endpoint(url=server.url, model="m", num_tries=3), 2, wait, notes.append)
        try:
            for number in range(times):
                asked = SamplingParams(**{"max_new_tokens": 8, "seed": number, **sampling})
                await client.complete([{"role": "user", "content": "Hi."}], (), asked, schema)
        finally:
            await client.close()

    asyncio.run(run())
    return waits, notes


def openai(name: str, text: str) -> tuple[int, Any]:
    return 400, {"error": {"message": text, "type": "invalid_request_error", "param": name, "code": None}}


EXTRA = {"type": "extra_forbidden", "msg": "Extra inputs are not permitted", "input": '"seed"'}
REFUSALS: dict[str, tuple[str, tuple[int, Any]]] = {
    "openai": ("seed", openai("seed", "Unsupported parameter: 'seed' is not supported with this model.")),
    "openai's default": ("temperature", openai("temperature", "Only the default (1) value is supported.")),
    "azure": ("seed", (400, {"error": {"message": "Unrecognized request argument supplied: seed", "param": None}})),
    "mistral": ("top_p", (422, {"object": "error", "message": {"detail": [EXTRA | {"loc": ["body", "top_p"]}]}})),
    "mistral in a proxy": ("seed", (422, b'{"message": "{\\"detail\\":[{\\"loc\\":[\\"body\\",\\"seed\\"]}]}"}')),
    "gemini": ("seed", (400, [{"error": {"message": 'Unknown name "seed": Cannot find field.'}}])),
    "groq": ("seed", (400, {"error": {"message": "property 'seed' is unsupported"}})),
    "litellm": ("seed", (400, {"error": {"message": "claude does not support parameters: ['seed'], for model=c"}})),
    "anthropic": ("top_p", (400, {"error": {"message": "`temperature` and `top_p` cannot both be specified"}})),
    "bedrock": ("temperature", (400, {"message": "This model doesn't support the temperature field"})),
    "kimi": ("temperature", (400, {"message": "invalid temperature: only 1 is allowed for this model"})),
    "serde": ("seed", (422, b"unknown field `seed`, expected one of `model`, `messages`, `max_tokens`")),
    "no schemas": ("response_format", (400, {"error": {"message": "response_format is not supported"}})),
}  # fmt: skip


@pytest.mark.parametrize(("name", "refusal"), REFUSALS.values(), ids=list(REFUSALS))
def test_a_refused_parameter_is_left_out_with_one_note(server: FakeOpenAI, name: str, refusal: tuple[int, Any]) -> None:
    server.play = lambda body: refusal if name in body else completion("Hello.")
    waits, notes = ask(server, times=3, schema=SCHEMA)
    assert [name in body for body in server.requests] == [True, False, False, False]
    first, later = server.requests[0], server.requests[-1]
    assert set(first) - set(later) == {name} and waits == []
    assert notes == [f"note: {server.url} refuses the parameter {name}; requests leave it out from now on"]


def test_several_are_left_out_one_after_the_other(server: FakeOpenAI) -> None:
    def play(body: dict[str, Any]) -> Any:
        for name in ("max_tokens", "temperature", "top_p", "seed"):
            if name in body:
                text = f"Unsupported parameter: '{name}' is not supported with this model."
                instead = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
                return openai(name, text + instead)
        return completion("Hello.")

    server.play = play
    notes = ask(server, times=2)[1]
    assert len(server.requests) == 6 and len(notes) == 3
    assert set(server.requests[-1]) == {"model", "messages", "max_completion_tokens"}


@pytest.mark.parametrize(
    ("setting", "needle"),
    [
        ({"temperature": 0.2}, "refuses temperature=0.2: set temperature to 1, which requests can leave out"),
        ({"top_p": 0.9}, "refuses top_p=0.9: set top_p to 1"),
        ({"max_new_tokens": 90000}, r"refuses max_tokens=90000: change the limit of new tokens \(--max-new-tokens\)"),
    ],
)
def test_a_refused_setting_stops_at_once(server: FakeOpenAI, setting: dict[str, Any], needle: str) -> None:
    name = next(iter(setting)).replace("max_new_tokens", "max_tokens")
    server.play = lambda body: openai(name, "Unsupported value.")
    with pytest.raises(UsageError, match=needle):
        ask(server, **setting)
    assert len(server.requests) == 1


def test_other_refusals_name_no_parameter(server: FakeOpenAI) -> None:
    server.play = lambda body: (400, {"error": {"message": "The seed is in the garden. Unknown cause."}})
    with pytest.raises(EngineError, match="refused the request"):
        ask(server)
    assert [set(body) for body in server.requests] == [
        {"model", "messages", "temperature", "top_p", "seed", "max_tokens"}
    ]


NO_CREDIT: dict[str, tuple[int, Any]] = {
    "openai": (429, {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}),
    "openai's limit": (400, {"error": {"message": "Limit reached.", "code": "billing_hard_limit_reached"}}),
    "anthropic": (400, {"error": {"message": "Your credit balance is too low to access the API."}}),
    "deepseek": (402, {"error": {"message": "Insufficient Balance"}}),
    "one api": (403, {"error": {"code": "insufficient_user_quota"}}),
}


@pytest.mark.parametrize("refusal", NO_CREDIT.values(), ids=list(NO_CREDIT))
def test_an_account_without_credit_stops_at_once(server: FakeOpenAI, refusal: tuple[int, Any]) -> None:
    server.play = lambda body: refusal
    with pytest.raises(
        UsageError, match=r"has no credit left for this key; top up the account, then go on with --resume"
    ):
        ask(server)
    assert len(server.requests) == 1


def test_a_limit_per_minute_that_speaks_of_billing_is_retried(server: FakeOpenAI) -> None:
    text = "You exceeded your current quota, please check your plan and billing details. Please retry in 17.3s."
    limit = (429, {"error": {"message": text, "status": "RESOURCE_EXHAUSTED"}})
    server.play = lambda body: limit if len(server.requests) == 1 else completion("Hello.")
    assert ask(server) == ([1.0], [])


def test_filtered_and_refused_answers_are_the_models_and_filtered_prompts_are_not(server: FakeOpenAI) -> None:
    answer = completion(None, finish="content_filter")
    said = read_answer(answer, 1)
    assert (said.action.text, said.action.calls, said.completion.finish_reason) == ("", (), FinishReason.STOP)
    answer["choices"][0]["message"]["refusal"] = "I cannot help with that."
    assert read_answer(answer, 1).action.text == "I cannot help with that."
    server.play = lambda body: (400, {"error": {"code": "content_filter", "message": "The prompt was filtered."}})
    with pytest.raises(EngineError, match="content_filter"):
        ask(server)


FILTERED: dict[str, Any] = {
    "null": {"choices": [{"message": None, "finish_reason": "PROHIBITED_CONTENT"}]},
    "absent": {"choices": [{"index": 0, "finish_reason": "content_filter"}]},
    "in words of no known server": {"choices": [{"message": None, "finish_reason": "taboo"}]},
    "no text": {"choices": [{"message": {"role": "assistant"}, "finish_reason": "SAFETY"}]},
    "all was thinking": {"choices": [{"finish_reason": "length"}]},
    "no choice": {"choices": [], "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}},
    "choices null": {"choices": None, "prompt_feedback": {"block_reason": "SAFETY"}},
}


@pytest.mark.parametrize("answer", FILTERED.values(), ids=list(FILTERED))
def test_a_filtered_answer_without_a_message_is_a_turn_without_a_call(server: FakeOpenAI, answer: Any) -> None:
    server.play = lambda body: answer
    assert ask(server) == ([], [])
    said = read_answer(answer, 1)
    assert (said.action.text, said.action.calls) == ("", ())
    assert said.wire["content"], "servers such as Mistral's refuse an empty message in the next request"


@pytest.mark.parametrize("answer", [{"choices": [{"message": None}]}, {"choices": []}, {"choices": [None]}, {}, None])
def test_an_answer_without_an_end_is_no_completion(server: FakeOpenAI, answer: Any) -> None:
    server.play = lambda body: answer if answer is not None else b"null"
    with pytest.raises(EngineError):
        ask(server)


def test_a_date_says_how_long_to_wait(server: FakeOpenAI) -> None:
    server.headers["Retry-After"] = "Fri, 02 Jan 2099 10:00:00 GMT"
    server.play = lambda body: 429 if len(server.requests) == 1 else completion("Hello.")
    waits, notes = ask(server)
    assert waits == [60.0] and len(notes) == 1
