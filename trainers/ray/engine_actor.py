"""The embedded engine in a process of its own."""

from __future__ import annotations

import torch
from safetensors.torch import load
from transformers import AutoModelForCausalLM

from agentgym.errors import EngineError
from agentgym.trainers.engines.build import torch_engine
from agentgym.trainers.ray.serving import EngineSpec, ServingActor
from agentgym.trainers.ray.weights import PackedWeights


class EngineActor(ServingActor):
    """The embedded engine over a copy of the trainer's model."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__()
        torch.set_num_threads(spec.config.num_threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_config(spec.shape)  # type: ignore[no-untyped-call]
        self._model = model.to(dtype=spec.dtype, device=device).eval()
        self._engine = self._torch = torch_engine(spec.config, self._model)

    async def take(self, weights: PackedWeights) -> None:
        self._read(load(weights.tensors))
        await self._torch.update_weights(weights.version)

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
