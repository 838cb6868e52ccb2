"""A program for two ranks: engines read a sharded model part by part, and have the weights of one that read a copy."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, cast

import torch

from agentgym.engine import SamplingParams
from agentgym.trainers.distributed.ranks import Ranks, join_ranks
from agentgym.trainers.distributed.sharding import shard_from_first
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.torch.weights import Present
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.placement.lending import GatherOnDemand
from agentgym.trainers.types import CausalLM
from testkit.tiny_models import tiny_model

CASES = (("qwen3", 0), ("qwen2", 0), ("llama3-rope-untied", 0), ("qwen3", 4))
"""Architectures, and ranks of adapters."""


def engine_of(model: CausalLM, present: Present | None = None) -> TorchEngine:
    return TorchEngine(model, num_slots=2, max_context_tokens=64, dtype=torch.bfloat16, present=present)


@torch.no_grad()
def change(model: CausalLM) -> None:
    for number, parameter in enumerate(model.parameters()):
        if parameter.requires_grad:
            parameter.mul_(1 + 0.25 * number % 0.7).add_(0.01)


async def compare(family: str, lora_rank: int, ranks: Ranks) -> None:
    model = add_lora(cast(CausalLM, tiny_model(family)), LoraSettings(rank=lora_rank), 0)
    whole_model = copy.deepcopy(model)
    sharded = shard_from_first(model if ranks.is_main else None, ranks)
    gathered = GatherOnDemand(sharded)
    served = gathered.empty_model
    assert sum(parameter.numel() for parameter in served.parameters()) == 0
    engine = engine_of(served, gathered.present)
    for version in (0, 1, 2):
        if version:
            change(sharded)
            change(whole_model)
            gathered.begin()
            await engine.update_weights(version)
        assert sum(parameter.numel() for parameter in served.parameters()) == 0
        expected = engine_of(whole_model)
        sampling = SamplingParams(max_new_tokens=12, seed=version)
        found, wanted = [await each.generate([5, 6, 7], sampling) for each in (engine, expected)]
        assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs), (family, lora_rank)
        await expected.close()
    await engine.close()
    gathered.give_all(is_kept=ranks.is_main)
    state: dict[str, Any] = whole_model.state_dict()
    for name, tensor in served.state_dict().items() if ranks.is_main else ():
        assert torch.equal(tensor, state[name]), name


def main() -> None:
    ranks = join_ranks()
    for family, lora_rank in CASES:
        asyncio.run(compare(family, lora_rank, ranks))
    ranks.leave()
    print("the same")


if __name__ == "__main__":
    main()
