"""Supervised fine-tuning on demonstrations: the warm start before RL.

Each segment is a row, and every token has a weight (:mod:`agentgym.trainers.sft.rows`). Observation tokens have one
too, because a model from scratch learns to copy names from observations by predicting them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from agentgym.env.worker_thread import is_interrupted
from agentgym.errors import RunStoppedError
from agentgym.trainers.checkpoint import CheckpointWriter
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.layout import recomputed
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.spread import RankBatches, RankRows
from agentgym.trainers.distributed.clipping import clipped_norm
from agentgym.trainers.distributed.sharding import ranks_of, run_whole
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models.head import head_of, trunk_of
from agentgym.trainers.models.head_logprobs import head_cross_entropies
from agentgym.trainers.models.precision import computing
from agentgym.trainers.phases.optimizer_step import set_rate
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run.run import Run
from agentgym.trainers.sft.batches import SftBatches, num_sft_steps
from agentgym.trainers.train_state import TrainState
from agentgym.trainers.types import CausalLM, Metrics


def batches_note(config: SftConfig, num_rows: int) -> str:
    """Return a note on rows that make few batches; empty if the phase has as many steps as its warm-up.

    Example:
        >>> batches_note(SftConfig(num_demos=1, batch_size=16), 9)
        'no warm start, 9 rows are fewer than sft.batch_size=16'
    """
    size, warmup = config.batch_size, config.optimizer.warmup_steps
    num_steps = num_sft_steps(config, num_rows)
    if num_steps == 0:
        return f"no warm start, {num_rows} rows are fewer than sft.batch_size={size}"
    if num_steps >= warmup:
        return ""
    left = num_rows % size
    rest = f", and each epoch leaves out {left} of them" if left else ""
    return (
        f"{num_rows} rows make {num_steps} steps of sft.batch_size={size}{rest}; the full rate is never used within "
        f"sft.optimizer.warmup_steps={warmup}: lower them, or raise sft.num_epochs={config.num_epochs}"
    )


def sft_steps(
    model: CausalLM,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    config: SftConfig,
    seed: int,
    first_step: int,
    loss: LossConfig = LossConfig(),  # noqa: B008  (frozen)
) -> Iterator[Metrics]:
    """Train from ``first_step`` on: make one optimizer step per item of this generator, and yield its metrics.

    Args:
        rows: rows with at least one weighted token each (:func:`~agentgym.trainers.data.weighted_row.is_taught`).
        loss: the size of micro-batches, the precision, and whether layers are recomputed.

    Raises:
        RunStoppedError: the loss or the gradient is not finite; the weights are those before the step.
    """
    batches = SftBatches(rows, config.batch_size, seed)
    num_steps = num_sft_steps(config, len(rows))
    for step in range(first_step, num_steps):
        rate = set_rate(optimizer, config.optimizer, step, num_steps)
        optimizer.zero_grad()
        sums = add_gradient(model, batches[step], loss)
        if not math.isfinite(sums.mean):
            raise RunStoppedError(f"sft step {step}: the loss is {sums.mean}; lower sft.optimizer.lr")
        what = f"sft step {step}: the gradient's norm"
        norm = clipped_norm(model.parameters(), config.optimizer.max_grad_norm, what, "lower sft.optimizer.lr")
        optimizer.step()
        yield {"loss": sums.mean, "action_loss": sums.action_mean, "grad_norm": norm, "lr": rate}


@dataclass(frozen=True, slots=True)
class SftSums:
    """Sums over the tokens of some rows, from which losses are computed."""

    loss: float = 0.0
    """Sum of cross-entropies times weights."""
    weight: float = 0.0
    sampled_loss: float = 0.0
    """Sum of cross-entropies of the assistant's tokens."""
    num_sampled: int = 0

    def __add__(self, other: SftSums) -> SftSums:
        return SftSums(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    @property
    def mean(self) -> float:
        """The loss; NaN if no token has a weight."""
        return self.loss / self.weight if self.weight else math.nan

    @property
    def action_mean(self) -> float:
        """The mean cross-entropy of the assistant's tokens; NaN if there are none."""
        return self.sampled_loss / self.num_sampled if self.num_sampled else math.nan


def add_gradient(
    model: CausalLM,
    rows: Sequence[Row],
    config: LossConfig,
    factor: float = 1.0,
    *,
    rollouts_are_sharded: bool = False,
) -> SftSums:
    """Add the gradient of the mean loss over the weighted tokens of some rows; return the sums of all ranks.

    Each micro-batch is divided by the weight of all rows, so that the gradient does not depend on micro-batches and
    ranks. All ranks must call this.

    Args:
        config: the size of micro-batches, the precision, and whether layers are recomputed.
        factor: factor of the loss.
        rollouts_are_sharded: each rank passes its own rows; else all pass the same. Each trains on its share.
    """
    ranks, device, total = ranks_of(model), next(model.parameters()).device, SftSums()
    weight = float(sum(row.columns["loss_weight"][row.in_batch].sum(dtype="float64") for row in rows))
    if rollouts_are_sharded:
        weight = sum(ranks.gathered(weight))
    if not weight:
        return SftSums()
    every = RankRows.of(rows, ranks, is_spread=rollouts_are_sharded)
    work = RankBatches.read(every, ranks, device, tokens_per_microbatch=config.microbatch_tokens, forwards_last=False)
    for index, scale in work.share:
        with recomputed(model) if config.recompute_activations else nullcontext():
            with computing(config.precision, device):
                loss, sums = sft_sums(model, work.batches[index])
            (loss * (factor * scale / weight)).backward()  # type: ignore[no-untyped-call]
        total += sums if scale else SftSums()
    return sum(ranks.gathered(total), SftSums())


def sft_sums(model: CausalLM, batch: Batch) -> tuple[Tensor, SftSums]:
    """Compute the sums with one forward pass over a micro-batch.

    Returns:
        the sum of cross-entropies times weights with its gradient, and all sums.
    """
    weight, is_sampled = batch["loss_weight"], batch["is_sampled"].float()

    def cross_entropies(gathered: CausalLM) -> Tensor:
        return head_cross_entropies(head_of(gathered), batch.states(trunk_of(gathered)), batch.target)

    per_token = run_whole(model, cross_entropies)
    loss, known = (per_token * weight).sum(), per_token.detach()
    sums = torch.stack([loss.detach(), weight.sum(), (known * is_sampled).sum(), is_sampled.sum()]).tolist()
    return loss, SftSums(loss=sums[0], weight=sums[1], sampled_loss=sums[2], num_sampled=int(sums[3]))


# ------------------------------------------------------------------------- the warm start: fine-tuning before RL


def warm_start(run: Run, state: TrainState, rows: Sequence[Row], checkpoints: CheckpointWriter, log: Log) -> None:
    """Fine-tune on demonstrations from ``state.step`` on, with a checkpoint every ``sft.checkpoint_every`` steps."""
    config = run.config
    every = config.sft.checkpoint_every or config.checkpoint_every
    num_steps = num_sft_steps(config.sft, len(rows))
    log.begin("sft", num_steps, state.step)
    if note := batches_note(config.sft, len(rows)):
        log.say(f"note: {note}")

    def after_step(metrics: Metrics) -> None:
        state.step += 1
        log.log("sft", state.step, metrics)
        checkpoints.check()
        is_stopped = is_interrupted() and run.ranks.count == 1
        if (state.step % every == 0 or is_stopped) and state.step < num_steps:
            checkpoints.save(state)
        if is_stopped:  # no await comes before the end of this phase
            raise asyncio.CancelledError

    if config.sft.trainer == "trl":
        from agentgym.trainers.trl.sft import trl_sft

        trl_sft(run.model, run.tokenizer, state.optimizer, rows, config, state.step, after_step)
        return
    for metrics in sft_steps(run.model, state.optimizer, rows, config.sft, config.seed, state.step, config.loss):
        after_step(metrics)
