"""Micro-batches and scores without a model, for tests of the losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.layout import PaddedRows
from agentgym.trainers.data.row import Row
from agentgym.trainers.losses import options as of
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, update_facts


def sample(
    num_prompt: int,
    num_sampled: int,
    advantage: float = 1.0,
    logprob: float = -1.0,
    *,
    turns: Sequence[int] | None = None,
    trajectory: int = 0,
) -> Row:
    """Return a training row: a prompt, then sampled tokens with one advantage and one log-probability."""
    return Row(
        token_ids=tuple(3 + i % 7 for i in range(num_prompt + num_sampled)),
        positions=num_prompt + np.arange(num_sampled),
        columns={
            "is_trained": np.ones(num_sampled, np.bool_),
            "advantage": np.full(num_sampled, advantage),
            "logprob_rollout": np.full(num_sampled, logprob),
            "turn_index": np.array(turns or [0] * num_sampled, np.int64),
        },
        trajectory=trajectory,
    )


def tokens(
    advantage: Sequence[float],
    *,
    rollout: Sequence[float] | None = None,
    row: Sequence[int] | None = None,
    turn: Sequence[int] | None = None,
    turn_index: Sequence[int] | None = None,
) -> Batch:
    """Return a micro-batch of tokens, by default of one row and one turn and averaged over tokens."""
    num = len(advantage)
    rows = torch.tensor([0] * num if row is None else row)
    return Batch(
        layout=PaddedRows(
            torch.zeros(0, dtype=torch.long), torch.zeros(int(rows.max()) + 1, num + 1, dtype=torch.long)
        ),
        row=rows,
        state=torch.arange(num),
        target=torch.zeros(num, dtype=torch.long),
        rows=tuple(range(int(rows.max()) + 1)),
        columns={
            "advantage": torch.tensor(advantage, dtype=torch.float64),
            "logprob_rollout": torch.tensor([0.0] * num if rollout is None else rollout, dtype=torch.float64),
            "loss_weight": torch.full((num,), 1 / num, dtype=torch.float64),
            "turn": rows if turn is None else torch.tensor(turn),
            "turn_index": torch.zeros(num, dtype=torch.long) if turn_index is None else torch.tensor(turn_index),
            "unit": rows,
        },
    )


def scores(
    logprob: Sequence[float] | Tensor, old: Sequence[float] | Tensor | None = None, **more: Any
) -> BatchLogprobs:
    """Return the models' scores of tokens; by default old log-probabilities and entropies are 0."""
    new = torch.as_tensor(logprob, dtype=torch.float64)
    before = torch.zeros_like(new) if old is None else torch.as_tensor(old, dtype=torch.float64)
    entropy = more.pop("entropy", torch.zeros_like(new))
    return BatchLogprobs(logprob=new, logprob_old=before, entropy=torch.as_tensor(entropy, dtype=torch.float64), **more)


def frozen_tokens(logprob: Tensor, old: Tensor | None = None) -> BatchLogprobs:
    """Return the scores of tokens before an update; by default the old policy is the current one."""
    before = logprob if old is None else old
    return BatchLogprobs(logprob=logprob, logprob_old=before, entropy=torch.zeros_like(logprob))


def assert_close(values: Sequence[float] | Tensor, expected: Sequence[float], tolerance: float = 1e-5) -> None:
    """Assert that tensors or lists contain the expected numbers."""
    assert list(torch.as_tensor(values).flatten().tolist()) == pytest.approx(list(expected), abs=tolerance)


def logs(ratios: Sequence[float]) -> list[float]:
    """Return the logarithms of ratios."""
    return [math.log(ratio) for ratio in ratios]


def normaliser(log_rho: Sequence[float], *corrections: Any, **layout: Any) -> float:
    """Return the divisor of ``batch_normalise``."""
    old = torch.tensor(log_rho, dtype=torch.float64)
    config = LossConfig(corrections=(*corrections, of.BatchNormaliseOptions()))
    frozen = frozen_tokens(old)
    facts = update_facts([tokens([1.0] * len(log_rho), **layout)], [frozen], config)
    return float(facts.prepared["correction", "batch_normalise"]["mean_weight"])
