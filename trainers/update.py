"""One training step's optimizer updates: from judged groups to new weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentgym.errors import RunStoppedError
from agentgym.trainers.batch import TrainBatch, build_batches
from agentgym.trainers.config import LossConfig
from agentgym.trainers.loss import MAXIMA, SUMMED, policy_loss, token_logprobs
from agentgym.trainers.samples import GroupVerdict, build_samples


def update_policy(
    model: Any,
    optimizer: torch.optim.Optimizer,
    verdicts: Sequence[GroupVerdict],
    config: LossConfig,
    *,
    temperature: float,
    max_grad_norm: float,
    reference: Any = None,
) -> dict[str, float]:
    """Train on the groups that were kept, in ``num_updates`` optimizer steps; gives means over the sampled tokens.

    With one update, the policy before it is the one whose gradient is taken, so its log-probabilities come from the
    same forward pass; with several they are computed before the first.

    Raises:
        RunStoppedError: the loss is not finite.
    """
    kept = [verdict for verdict in verdicts if verdict.dropped is None]
    device = next(model.parameters()).device
    updates = [
        build_batches(
            build_samples(kept[first :: config.num_updates]),
            aggregation=config.aggregation,
            norm_length=config.norm_length,
            tokens_per_microbatch=config.tokens_per_microbatch,
            device=device,
        )
        for first in range(min(config.num_updates, len(kept)))
    ]
    old = [[None if len(updates) == 1 else _frozen(model, b, temperature) for b in batches] for batches in updates]
    totals = _Totals()
    for batches, old_logprobs in zip(updates, old, strict=True):
        optimizer.zero_grad()
        for batch, logprob_old in zip(batches, old_logprobs, strict=True):
            logprob, entropy = token_logprobs(model, batch, temperature)
            output = policy_loss(
                logprob,
                entropy,
                logprob.detach() if logprob_old is None else logprob_old,
                batch,
                config,
                None if reference is None else _frozen(reference, batch, temperature),
            )
            output.loss.backward()  # type: ignore[no-untyped-call]
            totals.add(output.loss.item(), output.sums, output.maxima, batch.num_tokens)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item()
        if not math.isfinite(norm):
            raise RunStoppedError(f"the gradient's norm is {norm}; lower optimizer.lr or look at the latest rollouts")
        optimizer.step()
        totals.grad_norms.append(norm)
    return totals.means()


def _frozen(model: Any, batch: TrainBatch, temperature: float) -> Tensor:
    with torch.no_grad():
        return token_logprobs(model, batch, temperature)[0]


class _Totals:
    """Sums over an update's micro-batches; a step that trained no token has them all at 0."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.num_tokens = 0
        self.sums = dict.fromkeys(SUMMED, 0.0)
        self.maxima = dict.fromkeys(MAXIMA, 0.0)
        self.grad_norms: list[float] = []

    def add(self, loss: float, sums: dict[str, float], maxima: dict[str, float], num_tokens: int) -> None:
        self.loss += loss
        self.num_tokens += num_tokens
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in maxima.items():
            self.maxima[name] = max(self.maxima.get(name, 0.0), value)

    def means(self) -> dict[str, float]:
        num_updates = max(1, len(self.grad_norms))
        return {
            "loss": self.loss / num_updates,
            "grad_norm": sum(self.grad_norms) / num_updates,
            "trained_tokens": float(self.num_tokens),
            **{name: value / max(1, self.num_tokens) for name, value in self.sums.items()},
            **self.maxima,
        }
