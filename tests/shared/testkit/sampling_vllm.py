"""A server with vLLM's routes, in a thread, that samples from the weights that a run sends it."""

from __future__ import annotations

import asyncio
import base64
import copy
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from agentgym.engine import SamplingParams
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.facts import model_facts
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.vllm.proof import weight_sums
from agentgym.trainers.models.model import plain_tensors
from agentgym.trainers.run.run import Run
from agentgym.trainers.types import CausalLM
from testkit.fake_vllm import FakeVllm

CONTEXT = 160


class SamplingVllm(FakeVllm):
    """Loads the folders it is told to load, or the tensors in handles, and samples by the embedded engine.

    Attributes:
        model: the model that it samples from; give it one before it gets handles.
        base: the model below adapters; give it one before it gets these.
        senders: ids of the GPUs that sent handles.
    """

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        self.model: Any = None
        self.base: Any = None
        self.senders: set[str] = set()

    async def _route(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if (method, path) != ("POST", "/v1/load_lora_adapter"):
            return await super()._route(method, path, body)
        adapted: Any = PeftModel.from_pretrained(copy.deepcopy(self.base), body["lora_path"])
        self.model, self.adapters[body["lora_name"]] = adapted.merge_and_unload(), 0
        self._sample_from_model()
        return 200, None

    def _transfer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/update_weights":
            info = body["update_info"]
            handles = pickle.loads(base64.b64decode(info["ipc_handles_pickled"]))
            self.senders.update(gpu for handle in handles for gpu in handle)
            values = [torch.tensor(array) for handle in handles for (array,) in handle.values()]
            self.model.load_state_dict(dict(zip(info["names"], values, strict=True)), strict=False)
            self._sample_from_model()
        return super()._transfer(path, body)

    def _take(self, path: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path.parent)
        self._sample_from_model()

    def _sample_from_model(self) -> None:
        self.engine = TorchEngine(self.model, max_context_tokens=CONTEXT, batch_invariant=True)

    def _rpc(self, method: str, arguments: Any) -> tuple[int, Any]:
        if method != "agentgym_sums":
            return super()._rpc(method, arguments)
        dtype = self.facts["dtype"]
        sums = weight_sums(plain_tensors(self.base or self.model), [dtype])[dtype]
        parameters = {name: ([name], f"{value:x}") for name, value in sums.items()}
        return 200, {"results": [{"dtype": dtype, "parameters": parameters}]}

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
    facts = model_facts(model_of_run(config, folder))
    return {name: getattr(facts, name) for name in facts.__dataclass_fields__}


def model_of_run(config: TrainConfig, folder: Path) -> CausalLM:
    """Return a new model of a run."""
    return Run(config, folder).model
