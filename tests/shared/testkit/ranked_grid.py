"""A program of one rank: training and scoring under every combination of settings, from one seed.

``python ranked_grid.py OUT``: the first rank writes, for each combination, the change of all trained weights and the
scores of tokens (information gain).
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentgym.trainers.data.row import Row
from agentgym.trainers.distributed.ranks import Ranks, join_ranks
from agentgym.trainers.distributed.reference import EarlierAdapters, Reference
from agentgym.trainers.distributed.sharding import shard, sharded_copy, whole
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import KlOptions
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.model import add_lora, frozen_copy, never_trained
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.scoring.tokens import score
from agentgym.trainers.types import CausalLM
from testkit.ranked_update import made_verdicts, small_model

GRID = tuple(product((False, True), (False, True), ("float32", "bfloat16"), ("rows", "prefix", "packed")))
"""Combinations of KL penalty, LoRA, precision and layout."""
QUESTIONS = [
    Row(token_ids=(5, 6, 7, 8, 9), positions=np.array([2, 4])),
    Row(token_ids=(1, 2, 3), positions=np.array([1])),
]


def trained(ranks: Ranks, has_kl: bool, has_lora: bool, precision: Any, layout: Any) -> dict[str, Any]:
    begin = add_lora(small_model(), LoraSettings(rank=4 if has_lora else 0), 0)
    model = shard(begin, ranks, precision)
    reference = _reference(model, ranks, has_lora) if has_kl else None
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    before = [whole(parameter.detach()).clone() for _, parameter in named]
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.5)
    loss = LossConfig(
        tokens_per_microbatch=64,
        layout=layout,
        precision=precision,
        regularisers=(KlOptions(coef=0.5),) if has_kl else (),
    )
    for step in range(2):
        update_policy(
            model, optimizer, made_verdicts(step), loss, temperature=0.9, max_grad_norm=1.0, reference=reference
        )
    change = [(whole(p.detach()) - old).flatten() for (_, p), old in zip(named, before, strict=True)]
    scores = score(model, QUESTIONS, temperature=1.0, tokens_per_microbatch=64)
    return {"change": torch.cat(change), "scores": torch.tensor([x for one in scores for x in one.logprobs.tolist()])}


def _reference(model: CausalLM, ranks: Ranks, has_lora: bool) -> Reference:
    """Return the KL reference that a run would use: the current adapters, or a copy of the model."""
    if has_lora:
        return EarlierAdapters(model)
    return never_trained(sharded_copy(model)) if ranks.count > 1 else frozen_copy(model)


def main(out: Path) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks()
    found = {str(point): trained(ranks, *point) for point in GRID}
    if ranks.is_main:
        torch.save(found, out)
    ranks.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
