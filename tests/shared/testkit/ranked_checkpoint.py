"""A program of one rank: trains a small sharded model or resumes it, and writes a checkpoint.

``python ranked_checkpoint.py RUN_DIR OUT HOW``: without a checkpoint in RUN_DIR it trains two updates first. With one
it reads the checkpoint and writes it again as that of the next step. OUT receives the state of model and optimizer.
With HOW ``background``, weights and optimizer are overwritten while the checkpoint is written.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any, cast

import torch

from agentgym.credit.state import CreditState
from agentgym.render.chat import ChatRenderer
from agentgym.trainers.checkpoint import CheckpointWriter, load_latest_checkpoint, restore_state
from agentgym.trainers.critics.columns import ColumnMaker
from agentgym.trainers.distributed.ranks import join_ranks
from agentgym.trainers.distributed.sharding import shard, whole
from agentgym.trainers.distributed.tensor_folder import tensors_of
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.reporting.activity import Activity
from agentgym.trainers.train_state import TrainState
from testkit.ranked_update import made_verdicts, small_model


def main(run_dir: Path, out: Path, how: str) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks()
    config = load_recipe("tiny")
    found = load_latest_checkpoint(run_dir)
    model = shard(small_model(seed=0 if found is None else 1), ranks)  # what is resumed must not be there already
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    columns = {"env": ColumnMaker(config, model, cast("ChatRenderer", None))}
    state = TrainState(
        phase="rl",
        model=model,
        optimizer=optimizer,
        columns=columns,
        credit={"env": CreditState()},
        activity=Activity(config.loss),
    )
    if found is None:
        for step in range(2):
            loss = LossConfig(tokens_per_microbatch=64)
            update_policy(model, optimizer, made_verdicts(step), loss, temperature=1.0, max_grad_norm=1.0)
        state.num_trajectories = 18
    else:
        restore_state(state, found, ranks)
    state.step += 1
    held: dict[str, Any] = {"model": whole(model.state_dict()), "optimizer": whole(optimizer.state_dict())}
    held = copy.deepcopy(held)  # one rank's are the tensors themselves
    with CheckpointWriter(run_dir, ranks, in_background=how == "background") as checkpoints:
        checkpoints.save(state)
        if how == "background":
            with torch.no_grad():
                for _, tensor in tensors_of([model.state_dict(), optimizer.state_dict()]):
                    tensor.zero_()
    if ranks.is_main:
        torch.save(held | {"step": state.step, "num_trajectories": state.num_trajectories}, out)
    ranks.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
