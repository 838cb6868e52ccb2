"""The part of an engine's actor that runs a vLLM server beside it.

The server starts when the first weights arrive, because vLLM needs weights to start. Weights are then transferred
through a folder of the machine, and the server proves by checksum that it uses them, as in a run without Ray.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from agentgym.ports import free_port
from agentgym.processes.remains import Remains
from agentgym.server_tokens import made_token, remember_token
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.facts import facts_of
from agentgym.trainers.engines.vllm.launch import VllmInstall, VllmProcess, find_vllm
from agentgym.trainers.engines.vllm.server import VllmEngine
from agentgym.trainers.engines.vllm.weights import FolderSync
from agentgym.trainers.planning.servers import MODEL_FOLDER
from agentgym.trainers.ray.actor_state import ActorState, ending_with_parent
from agentgym.trainers.ray.serving import EngineSpec, Serving
from agentgym.trainers.ray.vllm_servers import serve_options
from agentgym.trainers.ray.weights import PackedWeights

_WEIGHTS = "model.safetensors"


class VllmServing(Serving):
    """A vLLM server, and the engine that sends requests to it."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__()
        if os.path.isdir(spec.folder):  # where .venv-vllm is looked for
            os.chdir(spec.folder)
        self._spec = spec
        self._install: VllmInstall = find_vllm()
        self._remains = Remains("agentgym-engine-")
        self._root = self._remains.folder
        self._process: VllmProcess | None = None
        self._weights = PackedWeights(version=0, tensors=b"")

    async def take(self, weights: PackedWeights) -> None:
        self._weights = weights
        if self._engine is None:
            self._engine = await self._start()
        self._leave_with_the_server()
        await self._engine.update_weights(weights.version)

    async def ping(self) -> ActorState:
        self._leave_with_the_server()
        return await super().ping()

    async def _start(self) -> VllmEngine:
        """Start the server, and wait until it answers."""
        spec, folder = self._spec, self._root / MODEL_FOLDER
        folder.mkdir(exist_ok=True)
        spec.shape.save_pretrained(folder)
        if spec.tokenizer is not None:
            spec.tokenizer.save_pretrained(folder)
        self._save(folder, ())
        url, token = f"http://127.0.0.1:{free_port()}", made_token()
        remember_token(url, token)
        options = serve_options(str(folder), url, spec.config, token)
        # in this thread, which lives as long as the actor: the server is to be killed with it
        self._process = VllmProcess(self._install, options, self._root / "vllm.log", ending_with_parent())
        self._remains.add_group(self._process.pid)
        config = spec.config.engine
        await asyncio.to_thread(self._process.wait_until_ready, config.start_timeout_s)
        return self._engine_over(replace(config, urls=(self._process.url,)))

    def _engine_over(self, config: EngineConfig) -> VllmEngine:
        facts = facts_of(self._spec.shape)
        sync = FolderSync(
            self._root / "weights", self._save, lambda ids, dtypes: self._weights.evidence, facts.vocab_size
        )
        return VllmEngine(config, sync, facts, max_context_tokens=self._spec.config.model.max_context_tokens)

    def _save(self, folder: Path, _: Collection[str]) -> None:
        (folder / _WEIGHTS).write_bytes(self._weights.tensors)
        if not (folder / "config.json").exists():
            self._spec.shape.save_pretrained(folder)

    def _leave_with_the_server(self) -> None:
        """Exit this process if its server has exited, so that Ray restarts both."""
        if self._process is not None and not self._process.is_running:
            os._exit(1)
