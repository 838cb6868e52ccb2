"""Facts about engines and the models that they sample from: dtype, shape, evidence of weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.client import ModelFacts
from agentgym.trainers.engines.vllm.proof import Evidence, WeightChecksum, scores, weight_sums
from agentgym.trainers.models.model import base_tensors, plain_tensors
from agentgym.trainers.types import CausalLM, ModelShape


def engine_dtype(config: EngineConfig, device: torch.device) -> torch.dtype | None:
    """Return the dtype of the embedded engine's computation; None for the model's own.

    Example:
        >>> engine_dtype(EngineConfig(), torch.device("cuda")), engine_dtype(EngineConfig(), torch.device("cpu"))
        (torch.bfloat16, None)
    """
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else None
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def witness(model: CausalLM, *, has_adapters: bool = False) -> WeightChecksum:
    """Return a function that computes the evidence of a model's current weights, by which servers are checked.

    Args:
        model: the trainer's model.
        has_adapters: True if servers swap adapters over base weights that never change.
    """
    known: dict[str, dict[str, int]] = {}

    def compute_checksum(token_ids: Sequence[int], dtypes: Collection[str]) -> Evidence:
        if has_adapters:
            missing = [dtype for dtype in dtypes if dtype not in known]
            known.update(weight_sums(base_tensors(model), missing) if missing else {})
            sums = {dtype: known[dtype] for dtype in dtypes}
        else:
            sums = weight_sums(plain_tensors(model), dtypes)
        return Evidence(sums=sums, logprobs={dtype: tuple(scores(model, token_ids, dtype)) for dtype in dtypes})

    return compute_checksum


def model_facts(model: CausalLM) -> ModelFacts:
    """Return the facts that a server of the same model reports."""
    return facts_of(model.config)


def facts_of(shape: ModelShape) -> ModelFacts:
    """Return :func:`model_facts` from the model's transformers configuration."""
    sizes = shape.get_text_config()
    return ModelFacts(**{name: getattr(sizes, name) for name in ModelFacts.__dataclass_fields__})
