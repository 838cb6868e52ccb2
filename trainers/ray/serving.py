"""The part of an engine's actor that holds the engine, and refuses to serve before it has the policy's weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors.torch import load

from agentgym.engine import Engine, ReportsHealth, SamplingParams
from agentgym.errors import EngineError, boundary
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.model import plain_model
from agentgym.trainers.models.reading import built
from agentgym.trainers.placement.build import torch_engine
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.trainers.ray.engine_client import LostSessionError, NoWeightsError
from agentgym.trainers.ray.weights import PackedWeights
from agentgym.trainers.types import CausalLM, ModelShape, Tokenizer
from agentgym.types import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The parts from which an engine is built, without weights."""

    config: TrainConfig
    shape: ModelShape
    dtype: torch.dtype
    """Data type of the trainer's weights."""
    tokenizer: Tokenizer | None = None
    folder: str = "."
    """Base folder of relative paths."""

    @classmethod
    def of(
        cls, config: TrainConfig, model: CausalLM, tokenizer: Tokenizer | None = None, folder: str = "."
    ) -> EngineSpec:
        """Build an ``EngineSpec`` from the trainer's model."""
        plain = plain_model(model)
        shape = copy.copy(plain.config)
        # a new model's configuration does not say its class, and vLLM would serve it without completions
        shape.architectures = shape.architectures or [type(plain).__name__]
        return cls(config=config, shape=shape, dtype=model.dtype, tokenizer=tokenizer, folder=folder)


class Serving:
    """An engine in a separate process. Subclasses define how weights are loaded."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._state = ActorState()
        self._sessions: set[str] = set()

    async def take(self, weights: PackedWeights) -> None:
        """Load weights into the engine; later requests sample from them."""
        raise NotImplementedError(f"{type(self).__name__} must implement take(weights)")

    async def ping(self) -> ActorState:
        """Return the state of the actor, with the serial number of its weights and its engine's load."""
        health = self._engine.health() if isinstance(self._engine, ReportsHealth) else None
        return replace(self._state, health=health)

    async def load(self, weights: PackedWeights, serial: int) -> None:
        """Load weights, and serve requests from now on.

        Raises:
            EngineError: the weights belong to another model or could not be loaded; then nothing is served.
        """
        self._state = replace(self._state, serial=0)
        with boundary(EngineError, f"loading version {weights.version}"):
            await self.take(weights)
        self._state = replace(self._state, serial=serial)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str, begins_session: bool
    ) -> Completion:
        """See :class:`~agentgym.engine.Engine`.

        Another engine could continue a session, but it would process the whole prompt at once. The result would be
        equal only up to rounding, and a repeated episode must be equal to the last bit.

        Raises:
            NoWeightsError: no weights have been loaded yet.
            LostSessionError: the session began on an engine that died.
        """
        engine = self._serving()
        if session_id and begins_session:
            self._sessions.add(session_id)
        elif session_id and session_id not in self._sessions:
            raise LostSessionError("the engine was started again in the middle of the episode")
        return await engine.generate(prompt_ids, sampling, session_id=session_id)

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """See :class:`~agentgym.engine.Engine`."""
        return await self._serving().score(prompt_ids, continuation_ids)

    async def release(self, session_id: str) -> None:
        """See :class:`~agentgym.engine.Engine`."""
        self._sessions.discard(session_id)
        if self._engine is not None:
            await self._engine.release(session_id)

    def _serving(self) -> Engine:
        if self._engine is None or not self._state.serial:
            raise NoWeightsError("the engine has no weights yet")
        return self._engine


class EmbeddedServing(Serving):
    """The embedded engine over a copy of the trainer's model."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__()
        torch.set_num_threads(spec.config.num_threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = built(spec.shape, spec.dtype)
        self._model = model.to(device)
        self._engine = self._torch = torch_engine(spec.config, self._model)

    async def take(self, weights: PackedWeights) -> None:
        self._read(load(weights.tensors))
        await self._torch.update_weights(weights.version)

    def _read(self, tensors: dict[str, torch.Tensor]) -> None:
        """Load the weights into the model. A missing tensor must share memory with a given one (tied embeddings)."""
        missing, unexpected = self._model.load_state_dict(tensors, strict=False)
        own = self._model.state_dict()
        given = {own[name].data_ptr() for name in tensors if name in own}
        lost = [name for name in missing if own[name].data_ptr() not in given]
        if lost or unexpected:
            raise EngineError(
                f"weights of another model: {len(lost)} tensors are missing and {len(unexpected)} unknown, "
                f"{', '.join([*lost, *unexpected][:3])} among them"
            )
