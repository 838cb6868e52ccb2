"""A program of one rank: types of the long table take a step of RL on several ranks and on one, in one start.

``python ranked_every_architecture.py OUT KIND...``: the first rank writes for each kind an empty text where the weights
are the same, else the reason for which the type is refused, or what failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from agentgym.errors import ConfigError, UsageError, error_text
from agentgym.trainers.distributed.ranks import Ranks, join_ranks
from agentgym.trainers.distributed.sharding import shard_from_first, whole
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models.check import check_model
from agentgym.trainers.models.meta import check_shared
from agentgym.trainers.models.precision import use_fused_attention
from agentgym.trainers.models.quantized import kept_state
from agentgym.trainers.models.reading import class_for
from agentgym.trainers.phases.update import update_policy
from testkit.every_architecture import model_of
from testkit.ranked_architectures import loaded_as
from testkit.ranked_update import made_verdicts


def ready(kind: str) -> Any:
    """Return a model as a run has it before it is shared."""
    model: Any = loaded_as(model_of(kind))
    use_fused_attention(model)
    return model


def updated(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights after a step of RL on rows of several lengths."""
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    loss = LossConfig(corrections=(), tokens_per_microbatch=64)
    update_policy(model, optimizer, made_verdicts(seed=0), loss, temperature=1.0, max_grad_norm=1.0)
    state: dict[str, torch.Tensor] = whole(kept_state(model))
    return state


def tried(kind: str, ranks: Ranks) -> str:
    """Train a type on one rank and on all; return the reason if it is refused, else an empty text."""
    alone, first = (ready(kind) for _ in range(2))
    try:
        class_for(alone.config)
        check_model(alone)
        check_shared(alone, ranks.count)
        TorchEngine(alone, num_slots=4, max_context_tokens=128)
    except (ConfigError, UsageError) as error:
        return str(error)
    before = {name: tensor.clone() for name, tensor in kept_state(first).items()}
    expected = updated(alone)
    assert any(not torch.equal(before[name], tensor) for name, tensor in expected.items()), kind
    found = updated(shard_from_first(first if ranks.is_main else None, ranks))
    assert expected.keys() == found.keys(), kind
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4)
    return ""


def main(out: Path, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks()
    told = {}
    for kind in kinds:
        try:
            told[kind] = tried(kind, ranks)
        except Exception as error:  # of any model's code; the others are tried all the same
            told[kind] = f"failed: {error_text(error)}"
    if ranks.is_main:
        out.write_text(json.dumps(told), encoding="utf-8")
    ranks.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
