"""The base of engine actors: they serve an engine, and nothing before it has the policy's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from agentgym.engine import Engine, SamplingParams
from agentgym.errors import EngineError, boundary
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.model import plain_model
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.trainers.ray.weights import PackedWeights
from agentgym.trainers.types import CausalLM, ModelShape, Tokenizer
from agentgym.types import Completion


class NoWeightsError(EngineError):
    """The engine was started again and has not been given the policy's weights yet."""


class LostSessionError(EngineError):
    """The engine that began a session is gone, and with it what it kept: the episode is to begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The parts that an engine is made from, without weights."""

    config: TrainConfig
    shape: ModelShape
    dtype: torch.dtype
    """Of the trainer's weights."""
    tokenizer: Tokenizer | None = None
    folder: str = "."
    """Where relative paths begin."""

    @classmethod
    def of(
        cls, config: TrainConfig, model: CausalLM, tokenizer: Tokenizer | None = None, folder: str = "."
    ) -> EngineSpec:
        """Build an ``EngineSpec`` from the trainer's model."""
        shape = plain_model(model).config
        return cls(config=config, shape=shape, dtype=model.dtype, tokenizer=tokenizer, folder=folder)


class ServingActor:
    """An engine in a process of its own; Ray makes an actor of its subclasses, which say how weights are taken."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._state = ActorState()
        self._sessions: set[str] = set()

    async def take(self, weights: PackedWeights) -> None:
        """Let the engine sample from these weights from now on."""
        raise NotImplementedError(f"{type(self).__name__} must implement take(weights)")

    async def ping(self) -> ActorState:
        """The actor that answers, and the weights it has."""
        return self._state

    async def load(self, weights: PackedWeights, serial: int) -> None:
        """Take weights, and serve.

        Raises:
            EngineError: they are not this model's, or could not be taken; nothing is served then.
        """
        self._state = replace(self._state, serial=0)
        with boundary(EngineError, f"loading version {weights.version}"):
            await self.take(weights)
        self._state = replace(self._state, serial=serial)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str, begins_session: bool
    ) -> Completion:
        """See :class:`~agentgym.engine.Engine`.

        Another engine would go on with a session, too, but having read its prompt in one piece: the same up to
        rounding, and a lost episode is to be the same to the last bit.

        Raises:
            NoWeightsError: none were loaded yet.
            LostSessionError: the session began on an engine that is gone.
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
