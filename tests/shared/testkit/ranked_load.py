"""A program of one rank: loads a run's model, of which only the first rank reads the files, and saves all shards.

``python ranked_load.py RUN_DIR OUT KEY=VALUE...``
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.distributed.ranks import join_ranks
from agentgym.trainers.distributed.sharding import own_part, whole
from agentgym.trainers.models.quantized import kept_state
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run import model as run_model
from agentgym.trainers.run.run import Run


def main(run_dir: Path, out: Path, overrides: list[str]) -> None:
    torch.set_num_threads(1)
    config = apply_overrides(load_recipe("tiny"), ["ranks.rollouts=first", *overrides])
    ranks = join_ranks(config.ranks)
    if not ranks.is_main:
        vars(run_model)["load_model"] = refuse
    run = Run(config, run_dir, ranks)
    held: dict[str, Any] = {"model": whole(kept_state(run.model))}
    if run.teacher is not None:
        held["teacher"] = whole(kept_state(run.teacher))
    parts = [own_part(parameter) for parameter in run.model.parameters()]
    sizes = ranks.gathered(sum(part.numel() for part in parts if not part.is_meta))
    trained = [name for name, parameter in run.model.named_parameters() if parameter.requires_grad]
    if ranks.is_main:
        torch.save({**held, "sizes": sizes, "trained": trained}, out)
    ranks.leave()


def refuse(*arguments: object) -> None:
    raise AssertionError("the first rank alone loads the model")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
