"""Training rows to tensors: micro-batches of similar length, with every denominator already global.

The loss is a weighted sum over sampled tokens. The weights are fixed here, from all rows of the update, so that
gradients do not depend on how the rows are split into micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.types import TrainingSample

PAD_ID = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One micro-batch: ``B`` right-padded rows and, flat, their ``N`` sampled tokens."""

    input_ids: Tensor
    """``[B, T]`` token ids. Padding is on the right, where causal attention cannot see it from a real token."""
    row: Tensor
    """``[N]`` row of each sampled token."""
    position: Tensor
    """``[N]`` position of each sampled token in its row, at least 1."""
    advantage: Tensor
    """``[N]``"""
    rollout_logprob: Tensor
    """``[N]`` log-probability under the distribution the engine sampled from."""
    weight: Tensor
    """``[N]`` share of the token in the update's loss."""

    @property
    def targets(self) -> Tensor:
        """``[N]`` the sampled token ids."""
        return self.input_ids[self.row, self.position]

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens."""
        return int(self.row.numel())


def token_weights(num_sampled_B: Sequence[int], aggregation: str, norm_length: int) -> list[float]:
    """Weight of each row's sampled tokens in the update's loss.

    ``token-mean`` divides by all sampled tokens (DAPO), ``seq-mean-token-mean`` by the row's tokens and by the rows
    (GRPO), ``seq-mean-token-sum`` by the rows, ``seq-mean-token-sum-norm`` by the constant ``norm_length`` alone
    (Dr.GRPO, as verl has it). Rows without sampled tokens do not count as rows.

    Example:
        >>> token_weights([2, 4], "token-mean", 8)
        [0.16666666666666666, 0.16666666666666666]
    """
    num_rows = sum(1 for n in num_sampled_B if n)
    num_tokens = sum(num_sampled_B)
    match aggregation:
        case "token-mean":
            return [1 / max(num_tokens, 1)] * len(num_sampled_B)
        case "seq-mean-token-mean":
            return [1 / (num_rows * n) if n else 0.0 for n in num_sampled_B]
        case "seq-mean-token-sum":
            return [1 / max(num_rows, 1)] * len(num_sampled_B)
        case "seq-mean-token-sum-norm":
            return [1 / norm_length] * len(num_sampled_B)
    raise AssertionError(f"aggregation {aggregation} got past the configuration's check")


def build_batches(
    samples: Sequence[TrainingSample],
    *,
    aggregation: str = "token-mean",
    norm_length: int = 1024,
    tokens_per_microbatch: int = 8192,
    device: torch.device | str = "cpu",
) -> list[TrainBatch]:
    """All rows of one optimizer update as micro-batches of at most ``tokens_per_microbatch`` padded tokens."""
    weights = token_weights([sum(sample.loss_mask) for sample in samples], aggregation, norm_length)
    order = sorted(range(len(samples)), key=lambda i: (len(samples[i].token_ids), i))
    batches: list[TrainBatch] = []
    rows: list[int] = []
    for index in order:
        if rows and (len(rows) + 1) * len(samples[index].token_ids) > tokens_per_microbatch:
            batches.append(_batch([samples[i] for i in rows], [weights[i] for i in rows], device))
            rows = []
        rows.append(index)
    if rows:
        batches.append(_batch([samples[i] for i in rows], [weights[i] for i in rows], device))
    return batches


def _batch(samples: Sequence[TrainingSample], weights: Sequence[float], device: torch.device | str) -> TrainBatch:
    longest = max(len(sample.token_ids) for sample in samples)
    input_ids = torch.full((len(samples), longest), PAD_ID, dtype=torch.long)
    rows: list[int] = []
    positions: list[int] = []
    columns: list[tuple[float, float, float]] = []
    for index, (sample, weight) in enumerate(zip(samples, weights, strict=True)):
        input_ids[index, : len(sample.token_ids)] = torch.tensor(sample.token_ids)
        sampled = [at for at, flag in enumerate(sample.loss_mask) if flag]
        assert not sampled or sampled[0] > 0, "a row begins with a prompt"
        rows += [index] * len(sampled)
        positions += sampled
        columns += [(sample.advantages[at], sample.rollout_logprobs[at], weight) for at in sampled]
    advantage, rollout_logprob, weight_column = torch.tensor(columns, dtype=torch.float32).reshape(-1, 3).unbind(1)
    return TrainBatch(
        input_ids=input_ids.to(device),
        row=torch.tensor(rows, dtype=torch.long, device=device),
        position=torch.tensor(positions, dtype=torch.long, device=device),
        advantage=advantage.to(device),
        rollout_logprob=rollout_logprob.to(device),
        weight=weight_column.to(device),
    )
