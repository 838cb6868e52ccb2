"""The official clients of OpenAI and Anthropic, and an endpoint for them whose policy answers with given texts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai

from agentgym.endpoint.gateway import KEY_PREFIX, Gateway
from agentgym.endpoint.session import EndpointPolicy, EpisodeSession
from agentgym.engine import SamplingParams
from testkit.drawing_engine import DrawingEngine
from testkit.tokenizers_for_tests import HERMES

Use = Callable[[str, EpisodeSession], Awaitable[Any]]


def served(use: Use, *texts: str, window: int = 4096) -> tuple[Any, EpisodeSession]:
    """Run a client against an endpoint whose policy answers with the texts; return the result and the session."""

    async def run() -> tuple[Any, EpisodeSession]:
        engine = DrawingEngine(texts, HERMES)
        policy = EndpointPolicy(
            engine=engine, renderer=engine.renderer, sampling=SamplingParams(max_new_tokens=64), window_tokens=window
        )
        session = EpisodeSession("abc", policy, 0, 20, lambda: "state")
        gateway = Gateway()
        gateway.open(session)
        await gateway.start()
        try:
            return await use(gateway.url, session), session
        finally:
            await gateway.close()

    return asyncio.run(run())


def openai_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=f"{KEY_PREFIX}abc", max_retries=0)


def anthropic_client(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=f"{url}/s/abc", api_key="any", max_retries=0)


def check_linear(session: EpisodeSession, num_calls: int = 2) -> None:
    """Check that all calls are turns of one segment, and that each prompt begins with the exact tokens before it."""
    (row,) = session.graph.segments()
    assert len(row) == num_calls
    tokens: tuple[int, ...] = ()
    for one in row:
        tokens += (*one.added_ids, *one.completion.token_ids)
        assert one.tokens == tokens
