"""Supervised fine-tuning on demonstrations: the warm start before RL.

One row per segment. Actions weigh 1 and observations ``observation_weight``: a model built from scratch learns to copy
names out of observations by predicting those too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.nn import functional

from agentgym.errors import RunStoppedError
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.train import SftConfig
from agentgym.trainers.data.layout import PAD_ID
from agentgym.trainers.phases.schedule import learning_rate
from agentgym.trainers.types import CausalLM
from agentgym.types import Segment, Trajectory

BATCHES_PER_WINDOW = 32


def num_sft_steps(config: SftConfig, num_rows: int) -> int:
    """Optimizer steps of the phase: whole batches only."""
    return config.num_epochs * (num_rows // config.batch_size)


def sft_rows(demos: Sequence[Trajectory]) -> list[Segment]:
    """The demonstrations as training rows."""
    return [segment for demo in demos for segment in demo.segments]


def sft_steps(
    model: CausalLM,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Segment],
    config: SftConfig,
    seed: int,
    first_step: int,
) -> Iterator[dict[str, float]]:
    """Train, one optimizer step per item, from ``first_step`` on; gives each step's metrics.

    Raises:
        RunStoppedError: the loss is not finite.
    """
    batches_per_epoch = len(rows) // config.batch_size
    num_steps = num_sft_steps(config, len(rows))
    for step in range(first_step, num_steps):
        epoch, batch = divmod(step, batches_per_epoch)
        if batch == 0 or step == first_step:
            batches = _epoch_batches(rows, config.batch_size, derive_seed(seed, "sft", epoch))
        chosen = [rows[i] for i in batches[batch]]
        rate = learning_rate(config.optimizer, step, num_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, sampled_loss = _weighted_loss(model, chosen, config.observation_weight)
        if not torch.isfinite(loss):
            raise RunStoppedError(f"sft step {step}: the loss is {loss.item()}; lower sft.optimizer.lr")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_grad_norm)
        optimizer.step()
        yield {"loss": loss.item(), "action_loss": sampled_loss, "grad_norm": norm.item(), "lr": rate}


def _epoch_batches(rows: Sequence[Segment], batch_size: int, seed: int) -> list[list[int]]:
    """An epoch's batches in random order, each of rows of similar length, since padding costs as much as tokens."""
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


def _weighted_loss(model: CausalLM, rows: Sequence[Segment], observation_weight: float) -> tuple[torch.Tensor, float]:
    device = next(model.parameters()).device
    longest = max(len(row.token_ids) for row in rows)
    input_ids = torch.full((len(rows), longest), PAD_ID, dtype=torch.long)
    weight = torch.zeros(len(rows), longest)
    is_sampled = torch.zeros(len(rows), longest)
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        input_ids[index, :length] = torch.tensor(row.token_ids)
        is_sampled[index, :length] = torch.tensor(row.loss_mask, dtype=torch.float32)
        weight[index, :length] = is_sampled[index, :length] + observation_weight * (1 - is_sampled[index, :length])
    input_ids, weight, is_sampled = input_ids.to(device), weight[:, 1:].to(device), is_sampled[:, 1:].to(device)
    logits = model(input_ids=input_ids[:, :-1], use_cache=False).logits.float()
    per_token = functional.cross_entropy(logits.transpose(1, 2), input_ids[:, 1:], reduction="none")
    loss = (per_token * weight).sum() / weight.sum()
    sampled_loss = (per_token.detach() * is_sampled).sum() / is_sampled.sum()
    return loss, sampled_loss.item()
