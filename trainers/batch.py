"""Training rows to tensors: micro-batches of similar length, with every denominator already global.

The loss is a weighted sum over sampled tokens. The weights are fixed here, from all rows of the update, so that
gradients do not depend on how the rows are split into micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

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
    turn: Tensor
    """``[N]`` which turn of the micro-batch the token was sampled in, counted from 0 without gaps."""
    turn_index: Tensor
    """``[N]`` position of that turn in its trajectory."""

    @property
    def targets(self) -> Tensor:
        """``[N]`` the sampled token ids."""
        return self.input_ids[self.row, self.position]

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens."""
        return int(self.row.numel())


Unit = Literal["trajectory", "turn"]


def token_weights(units: Sequence[Hashable], aggregation: str, norm_length: int) -> list[float]:
    """Weight of each trained token in the update's loss.

    ``token-mean`` divides by all trained tokens (DAPO), ``seq-mean-token-mean`` by the unit's tokens and by the number
    of units (GRPO, GSPO), ``seq-mean-token-sum`` by the number of units, ``seq-mean-token-sum-norm`` by the constant
    ``norm_length`` alone (Dr.GRPO, as verl has it). A unit without trained tokens does not count.

    Args:
        units: of every trained token, what it belongs to: its trajectory or its turn.

    Example:
        >>> token_weights(["a", "b", "b"], "seq-mean-token-mean", 8)
        [0.5, 0.25, 0.25]
    """
    sizes = Counter(units)
    match aggregation:
        case "token-mean":
            return [1 / max(1, len(units))] * len(units)
        case "seq-mean-token-mean":
            return [1 / (len(sizes) * sizes[unit]) for unit in units]
        case "seq-mean-token-sum":
            return [1 / max(1, len(sizes))] * len(units)
        case "seq-mean-token-sum-norm":
            return [1 / norm_length] * len(units)
    raise AssertionError(f"aggregation {aggregation} got past the configuration's check")


def num_averaged(samples: Sequence[TrainingSample], aggregation: str, unit: Unit) -> int | None:
    """What :func:`token_weights` divides by, over these rows: trained tokens, or units that have some.

    It adds up over groups, and weights of one part of an update times its number are weights times that of the whole:
    so a gradient can be summed before the whole is known, and divided at the end. None where the divisor is a
    constant.
    """
    if aggregation == "seq-mean-token-sum-norm":
        return None
    of_row = [[sample.turns[at] for at, flag in enumerate(sample.loss_mask) if flag] for sample in samples]
    if aggregation == "token-mean":
        return sum(map(len, of_row))
    return len({
        (sample.trajectory, turn if unit == "turn" else 0)
        for sample, turns in zip(samples, of_row, strict=True)
        for turn in turns
    })  # fmt: skip


def build_batches(
    samples: Sequence[TrainingSample],
    *,
    aggregation: str = "token-mean",
    unit: Unit = "trajectory",
    norm_length: int = 1024,
    tokens_per_microbatch: int = 8192,
    device: torch.device | str = "cpu",
) -> list[TrainBatch]:
    """All rows of one optimizer update as micro-batches of at most ``tokens_per_microbatch`` padded tokens.

    Args:
        unit: what the ``seq-mean`` aggregations take for a sequence. Segments of one trajectory are one.
    """
    trained = [[at for at, flag in enumerate(sample.loss_mask) if flag] for sample in samples]
    units = [
        (sample.trajectory, sample.turns[at] if unit == "turn" else 0)
        for sample, positions in zip(samples, trained, strict=True)
        for at in positions
    ]
    flat = iter(token_weights(units, aggregation, norm_length))
    rows = [_Row(s, positions, [next(flat) for _ in positions]) for s, positions in zip(samples, trained, strict=True)]
    rows.sort(key=lambda row: len(row.sample.token_ids))
    batches: list[TrainBatch] = []
    pending: list[_Row] = []
    for row in rows:
        if pending and (len(pending) + 1) * len(row.sample.token_ids) > tokens_per_microbatch:
            batches.append(_batch(pending, device))
            pending = []
        pending.append(row)
    if pending:
        batches.append(_batch(pending, device))
    return batches


@dataclass(frozen=True, slots=True)
class _Row:
    sample: TrainingSample
    positions: list[int]
    weights: list[float]


def _batch(rows: Sequence[_Row], device: torch.device | str) -> TrainBatch:
    longest = max(len(row.sample.token_ids) for row in rows)
    input_ids = torch.full((len(rows), longest), PAD_ID, dtype=torch.long)
    whole: list[tuple[int, int, int, int]] = []
    real: list[tuple[float, float, float]] = []
    turns: dict[tuple[int, int], int] = {}
    for index, row in enumerate(rows):
        sample = row.sample
        input_ids[index, : len(sample.token_ids)] = torch.tensor(sample.token_ids)
        assert not row.positions or row.positions[0] > 0, "a row begins with a prompt"
        for at, weight in zip(row.positions, row.weights, strict=True):
            turn = turns.setdefault((index, sample.turns[at]), len(turns))
            whole.append((index, at, turn, sample.turns[at]))
            real.append((sample.advantages[at], sample.rollout_logprobs[at], weight))
    row_N, position, turn_N, turn_index = torch.tensor(whole, dtype=torch.long).reshape(-1, 4).unbind(1)
    advantage, rollout_logprob, weight_N = torch.tensor(real, dtype=torch.float32).reshape(-1, 3).unbind(1)
    return TrainBatch(
        input_ids=input_ids.to(device),
        row=row_N.to(device),
        position=position.to(device),
        advantage=advantage.to(device),
        rollout_logprob=rollout_logprob.to(device),
        weight=weight_N.to(device),
        turn=turn_N.to(device),
        turn_index=turn_index.to(device),
    )
