"""The actor of an engine.

Ray imports the class of an actor wherever a handle of it is sent, so this module needs no torch: env workers get
handles of engines. A worker with torch would take seconds longer to start, and hundreds of megabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentgym.engine import SamplingParams
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.types import Completion

if TYPE_CHECKING:
    from agentgym.trainers.ray.serving import EngineSpec, Serving
    from agentgym.trainers.ray.weights import PackedWeights


class EngineActor:
    """A Ray actor that passes calls on to its :class:`~agentgym.trainers.ray.serving.Serving`."""

    def __init__(self, spec: EngineSpec) -> None:
        self._serving = _make(spec)

    async def ping(self) -> ActorState:
        """See :meth:`Serving.ping`."""
        return await self._serving.ping()

    async def load(self, weights: PackedWeights, serial: int) -> None:
        """See :meth:`Serving.load`."""
        await self._serving.load(weights, serial)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str, begins_session: bool
    ) -> Completion:
        """See :meth:`Serving.generate`."""
        return await self._serving.generate(prompt_ids, sampling, session_id, begins_session)

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """See :meth:`Serving.score`."""
        return await self._serving.score(prompt_ids, continuation_ids)

    async def release(self, session_id: str) -> None:
        """See :meth:`Serving.release`."""
        await self._serving.release(session_id)


def _make(spec: EngineSpec) -> Serving:
    if spec.config.engine.traits.is_served:
        from agentgym.trainers.ray.vllm_serving import VllmServing

        return VllmServing(spec)
    from agentgym.trainers.ray.serving import EmbeddedServing

    return EmbeddedServing(spec)
