"""An engine in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors.torch import load, save
from transformers import AutoModelForCausalLM

from agentgym.engine import Engine, SamplingParams
from agentgym.errors import EngineError, boundary
from agentgym.trainers.config import TrainConfig
from agentgym.trainers.engines.build import torch_engine
from agentgym.trainers.model import plain_model, plain_tensors
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.types import Completion


class NoWeightsError(EngineError):
    """The engine was started again and has not been given the policy's weights yet."""


class LostSessionError(EngineError):
    """The engine that began a session is gone, and with it what it kept: the episode is to begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What an engine is made from, without weights.

    Args:
        shape: the model's transformers configuration.
        dtype: of the trainer's weights.
    """

    config: TrainConfig
    shape: Any
    dtype: torch.dtype

    @classmethod
    def of(cls, config: TrainConfig, model: Any) -> EngineSpec:
        """That of the trainer's model."""
        return cls(config=config, shape=plain_model(model).config, dtype=model.dtype)


def packed_weights(model: Any) -> bytes:
    """The model's weights, adapters merged, as one safetensors file."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in plain_tensors(model)})


class EngineActor:
    """The embedded engine over a copy of the trainer's model; Ray makes an actor of it.

    It serves nothing before :meth:`load`, so that one that was started again never samples from other weights than the
    policy's.
    """

    def __init__(self, spec: EngineSpec) -> None:
        torch.set_num_threads(spec.config.num_threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = AutoModelForCausalLM.from_config(spec.shape).to(dtype=spec.dtype, device=device).eval()
        self._engine: Engine = torch_engine(spec.config, self._model)
        self._state = ActorState()
        self._sessions: set[str] = set()

    async def ping(self) -> ActorState:
        """Who answers, and with which weights."""
        return self._state

    async def load(self, weights: bytes, version: int, serial: int) -> None:
        """Take weights that :func:`packed_weights` packed.

        Raises:
            EngineError: they are not this model's; nothing is served then.
        """
        self._state = replace(self._state, serial=0)
        with boundary(EngineError, f"loading version {version}"):
            self._read(load(weights))
            await self._engine.update_weights(version)
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
        self._check_weights()
        if session_id and begins_session:
            self._sessions.add(session_id)
        elif session_id and session_id not in self._sessions:
            raise LostSessionError("the engine was started again in the middle of the episode")
        return await self._engine.generate(prompt_ids, sampling, session_id=session_id)

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """See :class:`~agentgym.engine.Engine`."""
        self._check_weights()
        return await self._engine.score(prompt_ids, continuation_ids)

    async def release(self, session_id: str) -> None:
        """See :class:`~agentgym.engine.Engine`."""
        self._sessions.discard(session_id)
        await self._engine.release(session_id)

    def _check_weights(self) -> None:
        if not self._state.serial:
            raise NoWeightsError("the engine has no weights yet")

    def _read(self, tensors: dict[str, torch.Tensor]) -> None:
        """Put the weights into the model. What is missing must be another name of what was given (tied embeddings)."""
        missing, unexpected = self._model.load_state_dict(tensors, strict=False)
        own = self._model.state_dict()
        given = {own[name].data_ptr() for name in tensors if name in own}
        lost = [name for name in missing if own[name].data_ptr() not in given]
        if lost or unexpected:
            raise EngineError(
                f"weights of another model: {len(lost)} tensors are missing and {len(unexpected)} unknown, "
                f"{', '.join([*lost, *unexpected][:3])} among them"
            )
