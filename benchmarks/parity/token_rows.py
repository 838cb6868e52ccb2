"""Random off-policy tokens for the loss cases, padded as released code reads them and flat as ours does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.layout import PaddedRows
from agentgym.trainers.data.plan import token_weights
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, UpdateStatistics, update_facts
from agentgym.trainers.losses.loss import policy_loss
from agentgym.trainers.losses.regularisers import EntropyHistory

NORM_LENGTH = 7
"""Divisor of ``seq-mean-token-sum-norm`` in the cases."""
WIDTH = 14
"""Padded length of a row, ``T``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """Rows of sampled tokens, ``[B, T]`` in float64. Observations and padding are where ``mask`` is False."""

    mask: Tensor
    turn: Tensor
    """Turn of each token in its row, from 0; 0 where masked."""
    advantage: Tensor
    logprob: Tensor
    """Log-probabilities under the policy that is trained."""
    old: Tensor
    """Log-probabilities under the policy before the update."""
    rollout: Tensor
    """Log-probabilities from the engine."""
    reference: Tensor
    entropy: Tensor
    demonstrated: Tensor | None = None
    """True for tokens of a demonstration; None if there are none."""

    def per_turn(self) -> TokenRows:
        """Return the same tokens with one row per turn."""
        turns = [(row, turn) for row in range(len(self.mask)) for turn in range(int(self.turn[row].max()) + 1)]
        rows = torch.tensor([row for row, _ in turns])
        mask = torch.stack([self.mask[row] & (self.turn[row] == turn) for row, turn in turns])
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("mask", "turn")}
        named = {name: column[rows] for name, column in columns.items() if column is not None}
        return TokenRows(mask=mask, turn=torch.zeros_like(self.turn[rows]), **named)

    def frozen(self) -> BatchLogprobs:
        """Return our code's data on the sampled tokens before the update."""
        return BatchLogprobs(
            logprob=self.logprob[self.mask], logprob_old=self.old[self.mask], entropy=self.entropy[self.mask]
        )

    def batch(self, config: LossConfig) -> Batch:
        """Return our micro-batch of the sampled tokens, with all values in float64."""
        row, _ = self.mask.nonzero().unbind(1)
        turn_index = self.turn[self.mask]
        _, turn = torch.unique(row * WIDTH + turn_index, return_inverse=True)
        unit = turn if config.unit == "turn" else row
        weight = token_weights(unit.numpy(), config.mean, config.norm_length)
        shown = {} if self.demonstrated is None else {"demonstrated": self.demonstrated[self.mask]}
        return Batch(
            layout=PaddedRows(torch.zeros(0, dtype=torch.long), torch.zeros(self.mask.shape, dtype=torch.long)),
            row=row,
            state=torch.arange(len(row)),
            target=torch.zeros_like(row),
            rows=tuple(range(len(self.mask))),
            columns={
                "advantage": self.advantage[self.mask],
                "logprob_rollout": self.rollout[self.mask],
                "loss_weight": torch.tensor(weight, dtype=torch.float64),
                "turn": turn,
                "turn_index": turn_index,
                "unit": unit,
                **shown,
            },
        )


def draw_rows(
    rng: np.random.Generator, *, advantage_per: Literal["token", "turn", "row"] = "token", gap: float = 0.6
) -> TokenRows:
    """Draw one to four rows of one to three turns, with masked tokens and sometimes a row that is masked altogether.

    Args:
        advantage_per: unit over which an advantage is constant.
        gap: standard deviation of the log-ratios; some are exactly 0 and some are five times as large.
    """
    num_rows = int(rng.integers(1, 5))
    mask, turn = np.zeros((num_rows, WIDTH), dtype=bool), np.zeros((num_rows, WIDTH), dtype=np.int64)
    for row in range(num_rows):
        at = int(rng.integers(0, 2))
        for index in range(int(rng.integers(1, 4))):
            length = int(rng.integers(1, 4))
            mask[row, at : at + length], turn[row, at : at + length] = True, index
            at += length + 1  # an observation token between two turns
    if num_rows > 1 and rng.random() < 0.3:
        mask[-1] = False
    turn[~mask] = 0
    shape = mask.shape
    advantage = np.where(rng.random(shape) < 0.2, 0.0, rng.choice([-1.5, -0.5, 0.5, 0.5, 2.0], shape))
    if advantage_per != "token":
        first = advantage if advantage_per == "turn" else np.broadcast_to(advantage[:, :1], shape)
        advantage = np.take_along_axis(first, turn, axis=1)

    def log_ratio() -> np.ndarray:
        scale = rng.choice([0.0, 1.0, 1.0, 5.0], shape, p=[0.15, 0.4, 0.3, 0.15])
        return rng.normal(0.0, gap, shape) * scale

    logprob = -rng.exponential(1.0, shape)
    old = logprob - log_ratio()
    return TokenRows(
        mask=torch.tensor(mask),
        turn=torch.tensor(turn),
        advantage=torch.tensor(advantage),
        logprob=torch.tensor(logprob),
        old=torch.tensor(old),
        rollout=torch.tensor(old - log_ratio()),
        reference=torch.tensor(logprob - log_ratio()),
        entropy=torch.tensor(rng.exponential(0.8, shape)),
    )


def ours(rows: TokenRows, config: LossConfig, history: EntropyHistory | None = None) -> np.ndarray:
    """Return our loss and its gradients with respect to log-probabilities and entropies, ``[1 + 2 B T]``."""
    batch = rows.batch(config)
    facts: UpdateStatistics = update_facts([batch], [rows.frozen()], config)

    def loss(logprob: Tensor, entropy: Tensor) -> Tensor:
        scores = BatchLogprobs(
            logprob=logprob[rows.mask],
            logprob_old=rows.old[rows.mask],
            entropy=entropy[rows.mask],
            logprob_ref=rows.reference[rows.mask],
        )
        return policy_loss(scores, batch, config, facts, history).loss

    return with_gradients(rows, loss)


def with_gradients(rows: TokenRows, loss: Callable[[Tensor, Tensor], Tensor]) -> np.ndarray:
    """Return a loss of log-probabilities and entropies ``[B, T]``, and its gradients, ``[1 + 2 B T]``."""
    logprob, entropy = rows.logprob.clone().requires_grad_(), rows.entropy.clone().requires_grad_()
    value = loss(logprob, entropy)
    value = value + 0 * (logprob.sum() + entropy.sum())  # so that both have a gradient
    gradients = torch.autograd.grad(value, (logprob, entropy))
    flat = [value.detach().reshape(1), *(gradient.reshape(-1) for gradient in gradients)]
    return torch.cat(flat).numpy()


def masked_sum(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Return a sum over a mask, as verl's ``torch_functional`` does."""
    return (values * mask).sum() if axis is None else (values * mask).sum(dim=axis)


def masked_mean(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Return a mean over a mask, with verl's 1e-8 in the divisor."""
    return masked_sum(values, mask, axis) / ((mask.sum() if axis is None else mask.sum(dim=axis)) + 1e-8)


VERL_FUNCTIONS = SimpleNamespace(masked_sum=masked_sum, masked_mean=masked_mean)
"""The functions of ``verl.utils.torch_functional`` that verl's losses use; the module itself imports tensordict."""


class ActorConfig(SimpleNamespace):
    """The fields of verl's actor configuration that its losses read."""

    def __init__(self, **settings: Any) -> None:
        defaults = {
            "clip_ratio": 0.2,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.28,
            "clip_ratio_c": 3.0,
            "tau_pos": 1.0,
            "tau_neg": 1.05,
            "global_batch_info": {"loss_scale_factor": NORM_LENGTH},
        }
        super().__init__(**defaults | settings)

    def get(self, name: str, default: Any) -> Any:
        """Return a setting, as an OmegaConf node does."""
        return getattr(self, name, default)
