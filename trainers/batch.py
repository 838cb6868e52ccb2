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

from agentgym.trainers.layout import Layout, common_prefix, lay_out, shared_prefix
from agentgym.trainers.losses.config import LayoutKind
from agentgym.types import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One micro-batch: rows as they are forwarded and, flat, their ``N`` sampled tokens."""

    layout: Layout
    """What the model reads."""
    row: Tensor
    """``[N]`` row of each sampled token, ascending."""
    state: Tensor
    """``[N]`` place of the hidden state that predicts the token, in :func:`agentgym.trainers.layout.hidden_states`."""
    target: Tensor
    """``[N]`` id of the token."""
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
    unit: Tensor
    """``[N]`` which of the update's averaged units (trajectories or turns) the token belongs to."""
    samples: tuple[int, ...] = ()
    """Of each row, the index of its sample among those that :func:`build_batches` was given."""
    trajectories: tuple[int, ...] = ()
    """Of each row, its trajectory's number."""
    first: int = 0
    """Number of the update's sampled tokens in the micro-batches before this one."""

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
    layout: LayoutKind = "rows",
    device: torch.device | str = "cpu",
) -> list[TrainBatch]:
    """All rows of one optimizer update as micro-batches of at most ``tokens_per_microbatch`` forwarded tokens.

    Args:
        unit: what the ``seq-mean`` aggregations take for a sequence. Segments of one trajectory are one.
        layout: ``rows`` puts rows of similar length under each other, ``prefix`` those of a group after what they
            share, ``packed`` as many as there is room for into one row, each distinct prefix once.
    """
    trained = [[at for at, flag in enumerate(sample.loss_mask) if flag] for sample in samples]
    units = [
        (sample.trajectory, sample.turns[at] if unit == "turn" else 0)
        for sample, positions in zip(samples, trained, strict=True)
        for at in positions
    ]
    number_of = {unit: number for number, unit in enumerate(dict.fromkeys(units))}
    flat = iter(zip(token_weights(units, aggregation, norm_length), units, strict=True))
    rows = []
    for index, (sample, positions) in enumerate(zip(samples, trained, strict=True)):
        shares = [next(flat) for _ in positions]
        of_unit = [number_of[unit] for _, unit in shares]
        rows.append(_Row(sample, positions, [share for share, _ in shares], of_unit, index))
    batches: list[TrainBatch] = []
    for some, kind in _micro_batches(rows, layout, tokens_per_microbatch):
        first = batches[-1].first + batches[-1].num_tokens if batches else 0
        batches.append(_batch(some, kind, device, first))
    return batches


@dataclass(frozen=True, slots=True)
class _Row:
    sample: TrainingSample
    positions: list[int]
    weights: list[float]
    units: list[int]
    index: int
    """Among the update's samples."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.sample.token_ids


def _micro_batches(rows: Sequence[_Row], layout: LayoutKind, room: int) -> list[tuple[list[_Row], LayoutKind]]:
    """The rows of each micro-batch, and the layout that pays for them."""
    if layout == "packed":
        alike_are_neighbours = sorted(rows, key=lambda row: (row.sample.ordinal, row.token_ids))
        return [(some, layout) for some in _packed(alike_are_neighbours, room)]
    made: list[tuple[list[_Row], LayoutKind]] = []
    alone = list(rows)
    if layout == "prefix":
        groups: dict[int, list[_Row]] = {}
        for row in rows:
            groups.setdefault(row.sample.ordinal, []).append(row)
        shared = [some for group in groups.values() for some in _after_prefix(group, room)]
        made = [(some, layout) for some in shared if _pays(some)]
        alone = [row for some in shared if not _pays(some) for row in some]
    return made + [(some, "rows") for some in _under_each_other(alone, room)]


def _under_each_other(rows: Sequence[_Row], room: int) -> list[list[_Row]]:
    """Rows of similar length, at most so many tokens with padding (or one row)."""
    batches: list[list[_Row]] = []
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        if batches and (len(batches[-1]) + 1) * len(row.token_ids) <= room:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _after_prefix(rows: Sequence[_Row], room: int) -> list[list[_Row]]:
    """The same where what all of a batch share counts once."""
    batches: list[list[_Row]] = []
    num_shared = 0
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        if batches:
            num_shared = min(num_shared, common_prefix(batches[-1][0].token_ids, row.token_ids))
            if num_shared + (len(batches[-1]) + 1) * (len(row.token_ids) - num_shared) <= room:
                batches[-1].append(row)
                continue
        batches.append([row])
        num_shared = len(row.token_ids) - 1
    return batches


def _pays(rows: Sequence[_Row]) -> bool:
    """Whether forwarding a shared prefix by itself saves a tenth of the tokens: it costs a second call."""
    ids = [row.token_ids for row in rows]
    return 10 * (len(ids) - 1) * shared_prefix(ids) >= len(ids) * len(ids[-1])


def _packed(rows: Sequence[_Row], room: int) -> list[list[_Row]]:
    """Neighbours, at most so many tokens that are not in the one before (or one row)."""
    batches: list[list[_Row]] = []
    size = 0
    for row in rows:
        if batches:
            size += len(row.token_ids) - common_prefix(batches[-1][-1].token_ids, row.token_ids)
            if size <= room:
                batches[-1].append(row)
                continue
        batches.append([row])
        size = len(row.token_ids)
    return batches


def _batch(rows: Sequence[_Row], layout: LayoutKind, device: torch.device | str, first: int) -> TrainBatch:
    laid_out, where = lay_out([row.token_ids for row in rows], layout, device)
    whole: list[tuple[int, int, int, int, int, int]] = []
    real: list[tuple[float, float, float]] = []
    turns: dict[tuple[int, int], int] = {}
    for index, row in enumerate(rows):
        sample = row.sample
        assert not row.positions or row.positions[0] > 0, "a row begins with a prompt"
        for at, weight, unit in zip(row.positions, row.weights, row.units, strict=True):
            turn = turns.setdefault((index, sample.turns[at]), len(turns))
            whole.append((index, where[index][at - 1], sample.token_ids[at], turn, sample.turns[at], unit))
            real.append((sample.advantages[at], sample.rollout_logprobs[at], weight))
    row_N, state, target, turn_N, turn_index, unit_N = torch.tensor(whole, dtype=torch.long).reshape(-1, 6).unbind(1)
    advantage, rollout_logprob, weight_N = torch.tensor(real, dtype=torch.float32).reshape(-1, 3).unbind(1)
    return TrainBatch(
        layout=laid_out,
        row=row_N.to(device),
        state=state.to(device),
        target=target.to(device),
        advantage=advantage.to(device),
        rollout_logprob=rollout_logprob.to(device),
        weight=weight_N.to(device),
        turn=turn_N.to(device),
        turn_index=turn_index.to(device),
        samples=tuple(row.index for row in rows),
        trajectories=tuple(row.sample.trajectory for row in rows),
        unit=unit_N.to(device),
        first=first,
    )
