"""The start of training: ranks in this process, under torchrun, or placed by Ray."""

from __future__ import annotations

import os
from pathlib import Path

from agentgym.errors import ConfigError, require_extra
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.rank import train_rank
from agentgym.trainers.run.folder import TrainResult


def train(config: TrainConfig, run_dir: Path, *, resume: bool = False) -> TrainResult:
    """Run a recipe: warm start, evaluation, RL, evaluation. All results are written to ``run_dir``.

    Under torchrun, or with ``cluster.num_trainer_ranks`` on a Ray cluster, the model is sharded over several processes.
    Each of them samples rollouts if the configuration allows it (``ranks.rollouts``). The first process evaluates, logs
    and writes checkpoints.

    Args:
        config: the run's configuration.
        run_dir: a new folder, or the folder of the run to resume.
        resume: continue from the latest checkpoint of ``run_dir``; the number of processes may differ. ``config`` must
            be the run's own, except that ``num_steps`` may be greater.

    Raises:
        UsageError: the folder, the model or the environment cannot be used, or another process writes to the folder.
        RunStoppedError: the run stopped itself; it can be resumed.
    """
    if not config.cluster.num_trainer_ranks:
        return train_rank(config, run_dir, resume=resume)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError("cluster.num_trainer_ranks lets Ray start the ranks: start one process, without torchrun")
    require_extra(f"cluster.address={config.cluster.address}", "ray", "ray")
    from agentgym.trainers.ray_ranks.trainer import train_on_cluster

    return train_on_cluster(config, run_dir, resume=resume)
