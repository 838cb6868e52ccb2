"""Metrics of a training step's updates: sums over micro-batches and ranks, and the means that are logged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.losses.loss import MAXIMA, SUMMED, LossOutput

Outcome = tuple[Batch, Tensor, LossOutput, int]
"""A micro-batch whose gradient was computed, its entropies, its loss, and the factor of its loss."""


def kl_to_sampling(outcomes: Sequence[Outcome]) -> tuple[float, int]:
    """Return the summed k3 KL to the sampling policy, and the number of tokens; repeated micro-batches do not count."""
    real = [(output.sums["kl_old"], batch.num_tokens) for batch, _, output, scale in outcomes if scale]
    return sum(kl for kl, _ in real), sum(count for _, count in real)


class UpdateTotals:
    """Sums over the micro-batches of a step's updates; all 0 if no token was trained."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.num_tokens = 0
        self.sums = dict.fromkeys(SUMMED, 0.0)
        self.maxima = dict.fromkeys(MAXIMA, 0.0)
        self.grad_norms: list[float] = []
        self.lr_scales: list[float] = []
        self.turn_entropy: dict[int, tuple[float, int]] = {}
        self.kl_old = (0.0, 0)
        """Summed k3 KL of the last update to the sampling policy, and the number of tokens."""
        self.stopped_by_kl = False

    @classmethod
    def of_all(cls, parts: Sequence[UpdateTotals]) -> UpdateTotals:
        """Return the sums over all ranks."""
        whole = parts[0]
        for part in parts[1:]:
            whole.loss += part.loss
            whole.num_tokens += part.num_tokens
            whole.sums = {name: whole.sums.get(name, 0.0) + part.sums.get(name, 0.0) for name in whole.sums | part.sums}
            whole.maxima = {name: max(value, part.maxima[name]) for name, value in whole.maxima.items()}
            for turn, (total, count) in part.turn_entropy.items():
                before, seen = whole.turn_entropy.get(turn, (0.0, 0))
                whole.turn_entropy[turn] = (before + total, seen + count)
            whole.kl_old = (whole.kl_old[0] + part.kl_old[0], whole.kl_old[1] + part.kl_old[1])
        return whole

    def add(self, batch: Batch, entropy: Tensor, output: LossOutput, scale: int) -> None:
        """Add a micro-batch whose loss was multiplied by ``scale``."""
        self.loss += output.loss.item() / scale
        self.num_tokens += batch.num_tokens
        for name, value in output.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in output.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, 0.0), value)
        counts = torch.bincount(batch["turn_index"]).tolist()
        sums = torch.bincount(batch["turn_index"], weights=entropy.double()).tolist()
        for turn, (total, count) in enumerate(zip(sums, counts, strict=True)):
            if count:
                before, seen = self.turn_entropy.get(turn, (0.0, 0))
                self.turn_entropy[turn] = (before + total, seen + count)

    def add_step(self, grad_norm: float, lr_scale: float) -> None:
        """Add an optimizer step."""
        self.grad_norms.append(grad_norm)
        self.lr_scales.append(lr_scale)

    def entropy_of_turn(self) -> dict[int, float]:
        """Return the mean token entropy by turn index."""
        return {turn: total / count for turn, (total, count) in self.turn_entropy.items()}

    def means(self) -> dict[str, float]:
        """Return the step's metrics; means over tokens or updates are NaN if there were none.

        ``loss`` and ``grad_norm`` are means over updates, most others over trained tokens. ``trained_tokens`` counts a
        token once per epoch. ``kl_old`` is the KL of the last update, in which the policy is furthest from the sampling
        policy.
        """
        num_updates, num_tokens = len(self.grad_norms), self.num_tokens
        return {
            "loss": _mean(self.loss, num_updates if num_tokens else 0),
            "grad_norm": _mean(sum(self.grad_norms), num_updates),
            "trained_tokens": float(num_tokens),
            **{name: _mean(value, num_tokens) for name, value in self.sums.items()},
            **(self.maxima if num_tokens else dict.fromkeys(self.maxima, math.nan)),
            "kl_old": _mean(*self.kl_old),
            "updates_done": float(num_updates),
            "stopped_by_kl": float(self.stopped_by_kl),
            **({"lr_scale": sum(self.lr_scales) / num_updates} if min(self.lr_scales, default=1.0) < 1 else {}),
        }


def _mean(total: float, count: int) -> float:
    return total / count if count else math.nan
