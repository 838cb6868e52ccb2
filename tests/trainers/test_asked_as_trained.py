"""A trained model behind an endpoint gets the prompts that it was trained with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_openai import FakeOpenAI, completion
from testkit.tokenizers_for_tests import trained as hermes_tokenizer

from agentgym.cli.serve_model import _options_of
from agentgym.engine import SamplingParams
from agentgym.errors import CorruptDataError, UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.rollout.context import FULL
from agentgym.trainers.engines.openai.endpoint import Endpoint, parse_endpoint
from agentgym.trainers.engines.openai.http import OpenAIAgent, OpenAIClient
from agentgym.trainers.models.card import ENDPOINT_FILE, model_card
from agentgym.types import Message, ToolCall, ToolResult, ToolSpec

GUESS = ToolSpec("guess", "Guess it.", {"type": "object", "properties": {"number": {"type": "integer"}}})
OPENING = (Message("user", "Find my number."),)
REPLIES = (Message("tool", "Higher.", result=ToolResult("Higher.", "guess")),)


def renderer_of(kind: str) -> ChatRenderer:
    if kind == "template":
        return ChatRenderer(hermes_tokenizer())
    tokenizer: Any = hermes_tokenizer()
    style: Any = "compact" if kind == "compact" else "schema"
    return ChatRenderer(tokenizer, ChatConfig(codec="compact" if kind == "compact" else "json", tools_style=style))


def folder_of(renderer: ChatRenderer, path: Path) -> Path:
    path.mkdir()
    model_card(renderer, FULL, "Guess-v0", "", "a prompt").write(path)
    return path


def asked(folder: Path, said: str, notes: list[str], **endpoint: Any) -> list[dict[str, Any]]:
    """Return the requests of an episode of two turns with a server of the folder's model."""
    server = FakeOpenAI(lambda body: completion(said, prompt_tokens=9, completion_tokens=5))
    server.roots = {"only": str(folder)}

    async def play() -> None:
        client = OpenAIClient(Endpoint(url=server.url, follows_model=True, **endpoint), 1, say=notes.append)
        await client.check()
        agent = OpenAIAgent(client, SamplingParams(max_new_tokens=20), 0)
        agent.begin(OPENING, [GUESS])
        decision = await agent.decide()
        assert decision is not None and decision.turn.action.calls == (ToolCall("guess", {"number": 2}, id="0"),)
        agent.observe(REPLIES)
        await agent.decide()
        await client.close()

    try:
        asyncio.run(play())
    finally:
        server.close()
    return server.requests


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("template", "tools=template&format=hermes&results=tool"),
        ("schema", "tools=text&format=json&results=tool&tools_style=schema"),
        ("compact", "tools=text&format=compact&results=tool&tools_style=compact"),
    ],
)
def test_a_servers_prompts_are_those_of_training(kind: str, options: str, tmp_path: Path) -> None:
    renderer, tokenizer = renderer_of(kind), hermes_tokenizer()
    folder = folder_of(renderer, tmp_path / "model")
    call = ToolCall("guess", {"number": 2}, id="0")
    said = renderer.action_text(Message("assistant", calls=(call,)), [GUESS])
    notes: list[str] = []
    requests = asked(folder, said, notes)
    assert notes == [f"note: the model is asked as it was trained, by {options} ({folder})"]
    trained = [OPENING, (*OPENING, Message("assistant", said, (call,), answer=""), *REPLIES)]
    for request, messages in zip(requests, trained, strict=True):
        assert request.get("tool_choice") == ("none" if kind == "template" else None)
        served = tokenizer.apply_chat_template(
            request["messages"], tools=request.get("tools"), add_generation_prompt=True, tokenize=False
        )
        assert served == renderer.text_of(renderer.prompt_ids(messages, [GUESS]))
    assert _options_of(str(folder)) == dict(pair.split("=") for pair in options.split("&"))
    assert f"openai:URL?{options}" in (folder / "README.md").read_text()


def test_an_address_that_says_how_is_followed() -> None:
    assert parse_endpoint("http://127.0.0.1/v1").follows_model
    for option in ("tools=server", "tools=text", "tools=text&format=json", "tools=text&tools_style=compact"):
        assert not parse_endpoint(f"http://127.0.0.1/v1?{option}").follows_model


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("tools=nowhere", "server, text or template"),
        ("tools=text&tools_style=short", "schema or compact"),
        ("tools_style=compact", "set tools=text"),
        ("results=tool", "leave out format= and results="),
        ("tools=text&results=none", "user or tool messages"),
        ("tools=template&tools_style=compact", "set tools=text"),
    ],
)
def test_options_that_do_nothing_are_refused(option: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_endpoint(f"http://127.0.0.1/v1?{option}")


@pytest.mark.parametrize("text", ["{", "[]", '{"tool": "text"}', '{"tools": "nothing"}', '{"format": "unknown"}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / ENDPOINT_FILE).write_text(text)
    with pytest.raises(CorruptDataError, match=f"{ENDPOINT_FILE} cannot be read"):
        _options_of(str(tmp_path))


def test_other_models_are_served_as_before(tmp_path: Path) -> None:
    assert _options_of(str(tmp_path)) == _options_of("Qwen/Qwen3-4B") == {"tools": "text"}
