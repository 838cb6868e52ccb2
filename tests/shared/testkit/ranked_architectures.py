"""A program of one rank: models of many architectures, sharded, compared with whole ones, in one start of two ranks.

``python ranked_architectures.py KIND...``: each rank prints one line for each kind.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from agentgym.trainers.config.train import CriticConfig
from agentgym.trainers.critics.critic import ValueNetwork
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.row import Row
from agentgym.trainers.distributed.ranks import join_ranks
from agentgym.trainers.distributed.sharding import shard_from_first, whole
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.models.quantized import kept_state
from agentgym.trainers.models.reading import senses_of
from testkit.architecture_steps import trained
from testkit.architectures import WITH_VISION, linear_layers, model_of, seeing_model


def loaded_as(model: Any) -> Any:
    """Return a model as it is loaded: parts that read images are frozen."""
    for _, part in senses_of(model):
        for weight in part.parameters():
            weight.requires_grad_(False)
    return model


def weights_after_a_step(model: Any) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = whole(kept_state(trained(model)))
    return state


def main(kinds: list[str]) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks()
    for kind in kinds:
        for rank in (0, 2):
            adapted = LoraSettings(rank=rank, target_modules=linear_layers(kind))
            make = seeing_model if kind in WITH_VISION else model_of
            alone, first = (add_lora(loaded_as(make(kind)), adapted, seed=0) for _ in range(2))
            expected = weights_after_a_step(alone)
            sharded = shard_from_first(first if ranks.is_main else None, ranks)
            found = weights_after_a_step(sharded)
            assert expected.keys() == found.keys(), kind
            for name, tensor in expected.items():
                torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4, msg=f"{kind} {name}")
            (batch,) = build_batches([Row(token_ids=(5, 6, 7), positions=np.array([2, 3]))])
            values = [ValueNetwork(model, CriticConfig(trunk="copy"), 1, seed=0)(batch) for model in (alone, sharded)]
            assert values[0].shape == values[1].shape == (2, 1)
        print(f"{kind} the same", flush=True)
    ranks.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
