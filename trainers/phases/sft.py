"""Supervised fine-tuning on demonstrations: the warm start before RL.

Each segment is a row, and every token has a weight (:mod:`agentgym.trainers.sft.rows`). Observation tokens have one
too, because a model from scratch learns to copy names from observations by predicting them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from agentgym.errors import RunStoppedError
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.data.layout import PAD_ID
from agentgym.trainers.distributed.checkpoint import CheckpointWriter, TrainState
from agentgym.trainers.distributed.sharding import run_whole
from agentgym.trainers.losses.config import Precision
from agentgym.trainers.models.head import head_of
from agentgym.trainers.models.precision import computing
from agentgym.trainers.phases.optimizer_step import set_rate
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run import Run
from agentgym.trainers.scoring.hidden import trunk_of
from agentgym.trainers.sft.rows import SftRow
from agentgym.trainers.types import CausalLM, Metrics

BATCHES_PER_WINDOW = 32


def num_sft_steps(config: SftConfig, num_rows: int) -> int:
    """Return the number of optimizer steps of the phase; only complete batches count."""
    return config.num_epochs * (num_rows // config.batch_size)


class SftBatches:
    """The batches of all epochs by position; each epoch has its own random order.

    Args:
        batch_size: rows per batch; an epoch leaves out rows that do not fill a batch.
        seed: seed of the orders of all epochs.
    """

    def __init__(self, rows: Sequence[SftRow], batch_size: int, seed: int, label: str = "sft") -> None:
        self._rows = rows
        self._per_epoch = len(rows) // batch_size
        self._epoch = lru_cache(maxsize=1)(
            lambda epoch: _epoch_batches(rows, batch_size, derive_seed(seed, label, epoch))
        )

    def __getitem__(self, position: int) -> list[SftRow]:
        return [self._rows[index] for index in self.indices(position)]

    def indices(self, position: int) -> list[int]:
        """Return the indices of the rows of the batch at a position."""
        epoch, at = divmod(position, self._per_epoch)
        return self._epoch(epoch)[at]


def sft_steps(
    model: CausalLM,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[SftRow],
    config: SftConfig,
    seed: int,
    first_step: int,
    precision: Precision = "float32",
) -> Iterator[Metrics]:
    """Train from ``first_step`` on: make one optimizer step per item of this generator, and yield its metrics.

    Raises:
        RunStoppedError: the loss is not finite.
    """
    batches = SftBatches(rows, config.batch_size, seed)
    num_steps = num_sft_steps(config, len(rows))
    for step in range(first_step, num_steps):
        rate = set_rate(optimizer, config.optimizer, step, num_steps)
        with computing(precision, next(model.parameters()).device):
            sums = sft_sums(model, batches[step])
        loss = sums.loss / sums.weight
        if not torch.isfinite(loss):
            raise RunStoppedError(f"sft step {step}: the loss is {loss.item()}; lower sft.optimizer.lr")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_grad_norm)
        optimizer.step()
        action_loss = (sums.sampled_loss / sums.num_sampled).item()
        yield {"loss": loss.item(), "action_loss": action_loss, "grad_norm": norm.item(), "lr": rate}


@dataclass(frozen=True, slots=True)
class SftSums:
    """Sums over the tokens of some rows, from which losses are computed; all are scalars."""

    loss: Tensor
    """Sum of cross-entropies times weights, with gradient."""
    weight: Tensor
    sampled_loss: Tensor
    """Sum of cross-entropies of the assistant's tokens, without gradient."""
    num_sampled: Tensor


def sft_sums(model: CausalLM, rows: Sequence[SftRow]) -> SftSums:
    """Compute the sums with one forward pass over these rows, padded to the longest."""
    device = next(model.parameters()).device
    longest = max(len(row.token_ids) for row in rows)
    input_ids = torch.full((len(rows), longest), PAD_ID, dtype=torch.long)
    weight = torch.zeros(len(rows), longest)
    is_sampled = torch.zeros(len(rows), longest)
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        input_ids[index, :length] = torch.tensor(row.token_ids)
        weight[index, :length] = torch.from_numpy(row.weights)
        is_sampled[index, :length] = torch.from_numpy(row.is_sampled)
    input_ids, weight, is_sampled = input_ids.to(device), weight[:, 1:].to(device), is_sampled[:, 1:].to(device)
    # The head is a fifth of a small model's computation, so it skips tokens that no sum reads.
    is_read = (weight > 0) | (is_sampled > 0)
    weight, is_sampled = weight[is_read], is_sampled[is_read]

    def read_logits(whole: CausalLM) -> Tensor:
        states = trunk_of(whole)(input_ids=input_ids[:, :-1], use_cache=False).last_hidden_state
        logits: Tensor = head_of(whole)(states[is_read])
        return logits.float()

    per_token = functional.cross_entropy(run_whole(model, read_logits), input_ids[:, 1:][is_read], reduction="none")
    return SftSums(
        loss=(per_token * weight).sum(),
        weight=weight.sum(),
        sampled_loss=(per_token.detach() * is_sampled).sum(),
        num_sampled=is_sampled.sum(),
    )


def _epoch_batches(rows: Sequence[SftRow], batch_size: int, seed: int) -> list[list[int]]:
    """Return an epoch's batches in random order, each with rows of similar length, because padding costs time."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows)).tolist()
    window = batch_size * BATCHES_PER_WINDOW
    by_length = [
        index
        for start in range(0, len(order), window)
        for index in sorted(order[start : start + window], key=lambda i: len(rows[i].token_ids))
    ]
    batches = [by_length[start : start + batch_size] for start in range(0, len(order) - batch_size + 1, batch_size)]
    return [batches[int(i)] for i in rng.permutation(len(batches))]


# ------------------------------------------------------------------------- the warm start: fine-tuning before RL


def warm_start(run: Run, state: TrainState, rows: Sequence[SftRow], checkpoints: CheckpointWriter, log: Log) -> None:
    """Fine-tune on demonstrations from ``state.step`` on, with a checkpoint every ``sft.checkpoint_every`` steps."""
    config = run.config
    every = config.sft.checkpoint_every or config.checkpoint_every
    num_steps = num_sft_steps(config.sft, len(rows))
    log.begin("sft", num_steps, state.step)
    if num_steps == 0:
        log.say(f"note: no warm start, {len(rows)} rows are fewer than sft.batch_size={config.sft.batch_size}")

    def after_step(metrics: Metrics) -> None:
        state.step += 1
        log.log("sft", state.step, metrics)
        checkpoints.check()
        if state.step % every == 0 and state.step < num_steps:
            checkpoints.save(state)

    if config.sft.trainer == "trl":
        from agentgym.trainers.trl.sft import trl_sft

        trl_sft(run.model, run.tokenizer, state.optimizer, rows, config, state.step, after_step)
        return
    precision = config.loss.precision
    for metrics in sft_steps(run.model, state.optimizer, rows, config.sft, config.seed, state.step, precision):
        after_step(metrics)
