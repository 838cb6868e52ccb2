"""A server with vLLM's routes, in a thread, that samples from the weights that a run sends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from agentgym.engine import SamplingParams
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.build import model_facts
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.vllm.proof import weight_sums
from agentgym.trainers.models.model import plain_tensors
from agentgym.trainers.run import Run
from testkit.fake_vllm import FakeVllm

CONTEXT = 160


class SamplingVllm(FakeVllm):
    """Loads the folders it is told to load, and samples by the embedded engine."""

    def _take(self, path: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path.parent)
        self.engine = TorchEngine(self.model, max_context_tokens=CONTEXT, batch_invariant=True)

    def _rpc(self, method: str, arguments: Any) -> tuple[int, Any]:
        if method != "agentgym_sums":
            return super()._rpc(method, arguments)
        sums = weight_sums(plain_tensors(self.model), ["float32"])["float32"]
        parameters = {name: ([name], f"{value:x}") for name, value in sums.items()}
        return 200, {"results": [{"dtype": "float32", "parameters": parameters}]}

    async def _complete(self, body: Any) -> tuple[int, Any]:
        prompt = body["prompt"]
        if "prompt_logprobs" in body:
            scores = await self.engine.score(prompt[:1], prompt[1:])
            later = [{str(token): {"logprob": score}} for token, score in zip(prompt[1:], scores, strict=True)]
            return 200, {"choices": [{"prompt_logprobs": [None, *later]}]}
        sampling = SamplingParams(
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
            seed=body["seed"],
            stop_token_ids=tuple(body["stop_token_ids"]),
        )
        done = await self.engine.generate(prompt, sampling)
        choice = {"token_ids": done.token_ids, "finish_reason": done.finish_reason}
        return 200, {"choices": [{**choice, "logprobs": {"token_logprobs": done.logprobs}}]}


@contextmanager
def serving_all(facts: dict[str, Any], count: int) -> Iterator[list[SamplingVllm]]:
    """Servers in a thread of their own, as the trainer's steps hold up its event loop."""
    loop, servers = asyncio.new_event_loop(), [SamplingVllm(**facts) for _ in range(count)]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for server in servers:
            asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield servers
    finally:
        for server in servers:
            asyncio.run_coroutine_threadsafe(server.kill(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


@contextmanager
def serving(facts: dict[str, Any]) -> Iterator[SamplingVllm]:
    """One server in a thread of its own."""
    with serving_all(facts, 1) as (server,):
        yield server


def facts_of_run(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """Return what a server must report about the model of a run."""
    facts = model_facts(Run(config, folder).model)
    return {name: getattr(facts, name) for name in facts.__dataclass_fields__}
