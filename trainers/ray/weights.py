"""The policy's weights on their way to engines."""

from __future__ import annotations

from dataclasses import dataclass

from safetensors.torch import save

from agentgym.trainers.engines.build import model_facts, scorer
from agentgym.trainers.engines.vllm.weights import probe_ids
from agentgym.trainers.models.model import plain_tensors
from agentgym.trainers.types import CausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """One version of the model, adapters merged."""

    version: int
    tensors: bytes
    """A safetensors file with a checkpoint's names; of tensors that share memory the first alone."""
    probe_logprobs: tuple[float, ...] = ()
    """The trainer's own, of the tokens that a vLLM server scores to show that it computes with these weights."""


def pack(model: CausalLM, version: int, *, for_vllm: bool = False) -> PackedWeights:
    """The model's current weights as ``version``."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in plain_tensors(model)}
    probe = scorer(model)(probe_ids(version, model_facts(model).vocab_size)) if for_vllm else []
    return PackedWeights(version=version, tensors=save(tensors), probe_logprobs=tuple(probe))
