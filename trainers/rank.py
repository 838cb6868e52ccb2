"""One process of a run: its checks, its lock on the run's folder, and the training loop in it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from agentgym.env.worker_thread import run_coroutine
from agentgym.rollout.folder_lock import locked
from agentgym.trainers.config.overrides import save_config
from agentgym.trainers.config.rank_limits import check_ranks
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.ranks import Ranks, join_ranks, num_restarts
from agentgym.trainers.loop import TrainingLoop
from agentgym.trainers.reporting.metrics import check_wandb
from agentgym.trainers.run.folder import TrainResult, check_run_dir, extend_run, forget_failed_start
from agentgym.trainers.run.tokenizer import keep_tokenizer


def train_rank(
    config: TrainConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    run: Callable[[Coroutine[Any, Any, TrainResult]], TrainResult] = run_coroutine,
) -> TrainResult:
    """Run this process's part of a run; environment variables say which rank it is.

    Args:
        config: the run's configuration.
        run_dir: the run's folder.
        resume: continue from the latest checkpoint.
        run: the function that runs the loop's coroutine to its end.
    """
    ranks = join_ranks(config.ranks)
    check_ranks(config, ranks.count)
    # When ranks are restarted, the previous first rank may still be ending and hold the lock.
    wait_s = config.cluster.wait_s if num_restarts() else 0.0
    with locked(run_dir, wait_s) if ranks.is_main else nullcontext():
        return _train(config, run_dir, resume, ranks, run)


def _train(
    config: TrainConfig,
    run_dir: Path,
    resume: bool,
    ranks: Ranks,
    run: Callable[[Coroutine[Any, Any, TrainResult]], TrainResult],
) -> TrainResult:
    if ranks.is_main:
        check_run_dir(config, run_dir, resume=resume)
        check_wandb(config.wandb_project)
    before = extend_run(config, run_dir) if resume and ranks.is_main else config.num_steps
    loop = TrainingLoop(config, run_dir, resume, ranks, num_steps_before=before)
    if not resume and ranks.is_main:  # only now, so that a refused configuration leaves no folder behind
        run_dir.mkdir(parents=True, exist_ok=True)
        save_config(config, run_dir / "config.json")
        if not config.model.path:
            keep_tokenizer(loop.run.tokenizer, run_dir)
    try:
        return run(loop.train())
    except Exception as error:
        if ranks.is_main:
            loop.note_stop(error)
            if not resume:
                forget_failed_start(run_dir)
        raise
    finally:
        loop.run.leave_cluster()
        ranks.leave()
