"""Random groups of episodes for the losses that compare them: padded as released code reads them, and flat as ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

WIDTH = 9
"""Padded length of an answer, ``T``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRows:
    """Answers of equal groups in float64, ``[B, T]`` each; a row per episode, and rows of a group are adjacent."""

    mask: Tensor
    logprob: Tensor
    old: Tensor
    reward: Tensor
    """``[B]``, 0 or 1."""
    group: Tensor
    """``[B]``."""
    size: int

    def columns(self) -> dict[str, Any]:
        """Return the columns that a ``prepare`` of ours reads, flat over the tokens, each with the weight 1."""
        row = self.mask.nonzero()[:, 0]
        return {
            "logprob": self.logprob[self.mask],
            "logprob_old": self.old[self.mask],
            "reward": self.reward[row],
            "trajectory": row,
            "group": self.group[row],
            "loss_weight": torch.ones(len(row), dtype=torch.float64),
        }

    def gradient(self, loss: Callable[[Tensor], Tensor]) -> np.ndarray:
        """Return a loss of log-probabilities ``[B, T]`` and its gradient by those of the tokens, ``[1 + M]``."""
        leaf = self.logprob.clone().requires_grad_()
        value = loss(leaf) + 0 * leaf.sum()  # so that there is a gradient
        (gradient,) = torch.autograd.grad(value, leaf)
        return torch.cat([value.detach().reshape(1), gradient[self.mask]]).numpy()


def draw_groups(rng: np.random.Generator) -> GroupRows:
    """Draw one to three groups of two to five answers of one to nine tokens; some groups have one kind of reward."""
    num_groups, size = int(rng.integers(1, 4)), int(rng.integers(2, 6))
    num_rows = num_groups * size
    lengths = rng.integers(1, WIDTH + 1, num_rows)
    mask = np.arange(WIDTH)[None] < lengths[:, None]
    logprob = -rng.exponential(1.0, mask.shape)
    old = np.where(mask, logprob - rng.normal(0, 0.3, mask.shape) * rng.choice([0, 1], mask.shape), logprob)
    return GroupRows(
        mask=torch.tensor(mask),
        logprob=torch.tensor(logprob),
        old=torch.tensor(old),
        reward=torch.tensor(rng.integers(0, 2, num_rows).astype(np.float64)),
        group=torch.tensor(np.repeat(rng.permutation(num_groups), size)),
        size=size,
    )
