"""A trainer's engine and fake vLLM servers, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agentgym.engine import Engine, SamplingParams
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.server import VllmEngine
from agentgym.trainers.engines.vllm.weights import FolderSync, LoraSync
from agentgym.types import Completion
from testkit.fake_vllm import FACTS, STOP, UNTRAINED, VOCAB_SIZE, FakeVllm, evidence_of, write_weights

T = TypeVar("T")
SAMPLING = SamplingParams(max_new_tokens=8, stop_token_ids=(STOP,), seed=7)
QUICK: dict[str, Any] = {
    "start_timeout_s": 20.0,
    "request_timeout_s": 20.0,
    "update_timeout_s": 20.0,
    "server_wait_s": 20.0,
    "health_interval_s": 0.05,
    "health_timeout_s": 20.0,
}
"""Long enough for any machine; a test that waits for one of them to pass sets it."""


class World:
    """Servers, the trainer's weights (a number) and the engine between them."""

    def __init__(self, root: Path, servers: list[FakeVllm], **config: Any) -> None:
        self.servers, self.number = servers, 1
        self.said: list[str] = []
        self.root = root
        is_lora = config.get("weight_sync") == "lora"
        self.sync = (LoraSync if is_lora else FolderSync)(
            root,
            lambda folder, dtypes: write_weights(folder, self.number),
            lambda ids, dtypes: evidence_of(UNTRAINED if is_lora else self.number, ids, dtypes),
            VOCAB_SIZE,
        )
        self.config = EngineConfig(kind="vllm", urls=tuple(s.url for s in servers), **{**QUICK, **config})
        self.engine = VllmEngine(self.config, self.sync, FACTS, max_context_tokens=64)
        self.engine._pool.say = self.said.append

    async def train(self, version: int, number: int) -> None:
        """A step of the trainer, and the engine told so."""
        self.number = number
        await self.engine.update_weights(version)

    async def ask(self, session: str = "", engine: Engine | None = None, **sampling: Any) -> Completion:
        """A completion."""
        asked = engine or self.engine
        return await asked.generate([5, 6, 7], replace(SAMPLING, **sampling), session_id=session)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the engine to notice something."""
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def world(root: Path, num_servers: int = 1, **config: Any) -> AsyncIterator[World]:
    servers = [await FakeVllm().start() for _ in range(num_servers)]
    made = World(root, servers, **config)
    try:
        yield made
    finally:
        await made.engine.close()
        for server in servers:
            await server.kill()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Nothing may wait for ever: a test that does fails."""
    return asyncio.run(asyncio.wait_for(coroutine, timeout=60))


async def some_tokens(server: FakeVllm, num_requests: int) -> None:
    """Wait until so many requests are in the middle of their completions."""
    while sum(0 < count < 6 for count in server.progress.values()) < num_requests:
        await asyncio.sleep(0.002)
