"""The policy's weights in the form that is sent to engines."""

from __future__ import annotations

from dataclasses import dataclass, replace

from safetensors.torch import save

from agentgym.trainers.engines.facts import model_facts, witness
from agentgym.trainers.engines.vllm.proof import DTYPES, Evidence
from agentgym.trainers.engines.vllm.weights import probe_ids
from agentgym.trainers.models.model import plain_tensors
from agentgym.trainers.types import CausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """One version of the model's weights, with merged adapters."""

    version: int
    tensors: bytes
    """A safetensors file with a checkpoint's names; tensors that share memory occur once."""
    evidence: Evidence = Evidence(sums={}, logprobs={})
    """Evidence that a vLLM server must return for these weights; empty for other engines."""


def pack(model: CausalLM, version: int, *, for_vllm: bool = False) -> PackedWeights:
    """Pack the model's current weights as ``version``."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in plain_tensors(model)}
    made = PackedWeights(version=version, tensors=save(tensors))
    if not for_vllm:
        return made
    return replace(made, evidence=witness(model)(probe_ids(version, model_facts(model).vocab_size), DTYPES))
