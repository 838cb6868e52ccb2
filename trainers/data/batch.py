"""Build micro-batches of tensors from training rows, with loss weights that are normalised over the whole update.

The loss is a weighted sum over sampled tokens. The plan computes the weights from all rows of the update, so that
gradients do not depend on how the rows are split into micro-batches, or on which rank computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentgym.credit.table import Floats, Ints
from agentgym.trainers.data.columns import COLUMNS
from agentgym.trainers.data.layout import Layout, lay_out
from agentgym.trainers.data.plan import BatchPlan, RowOutline, Unit, plan_batches
from agentgym.trainers.data.samples import TrainingSample
from agentgym.trainers.kinds import LayoutKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One micro-batch: the rows in their layout, and flat columns over their ``N`` sampled tokens."""

    layout: Layout
    """The input of the model."""
    row: Tensor
    """``[N]`` row of each sampled token, ascending."""
    state: Tensor
    """``[N]`` index into :func:`~agentgym.trainers.data.layout.hidden_states` of the state that predicts the token."""
    target: Tensor
    """``[N]`` id of the token."""
    advantage: Tensor
    """``[N]`` advantage of the token."""
    rollout_logprob: Tensor
    """``[N]`` log-probability under the distribution from which the engine sampled."""
    weight: Tensor
    """``[N]`` weight of the token in the update's loss."""
    turn: Tensor
    """``[N]`` turn in which the token was sampled, counted from 0 without gaps within the micro-batch."""
    turn_index: Tensor
    """``[N]`` position of that turn in its trajectory."""
    unit: Tensor
    """``[N]`` unit of averaging (trajectory or turn) to which the token belongs, counted over the update."""
    samples: tuple[int, ...] = ()
    """Index of each row's sample in the argument of :func:`build_batches`."""
    trajectories: tuple[int, ...] = ()
    """Number of each row's trajectory."""
    groups: tuple[int, ...] = ()
    """Ordinal of each row's group."""
    demonstrated: Tensor | None = None
    """``[N]`` True for tokens of demonstrations, whose ``rollout_logprob`` is unknown; None if there are none."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """Further columns that the loss reads, ``[N]`` each (:mod:`agentgym.trainers.data.columns`)."""
    first: int = 0
    """Number of the update's sampled tokens in the micro-batches before this one."""

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens."""
        return int(self.row.numel())

    def with_old_policy_as_sampler(self, logprob_old: Tensor) -> TrainBatch:
        """Return the micro-batch with the old policy in place of a sampling policy for demonstrated tokens.

        Corrections, KL estimates and gaps between the two are then neutral for them.
        """
        if self.demonstrated is None:
            return self
        return replace(self, rollout_logprob=torch.where(self.demonstrated, logprob_old, self.rollout_logprob))


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
    """Build the micro-batches of one optimizer update, each of at most ``tokens_per_microbatch`` tokens with padding.

    Args:
        unit: the sequence of the ``seq-mean`` aggregations. All segments of a trajectory are one sequence.
        layout: ``rows`` pads rows of similar length. ``prefix`` forwards the common prefix of a group's rows once.
            ``packed`` puts many rows into one sequence, with each distinct prefix once.
    """
    plan = plan_batches(
        [RowOutline.of(sample) for sample in samples],
        aggregation=aggregation,
        unit=unit,
        norm_length=norm_length,
        tokens_per_microbatch=tokens_per_microbatch,
        layout=layout,
    )
    held = dict(enumerate(samples))
    return [make_batch(plan, index, held, device) for index in range(len(plan.batches))]


def make_batch(
    plan: BatchPlan, index: int, samples: Mapping[int, TrainingSample], device: torch.device | str
) -> TrainBatch:
    """Make the tensors of a planned micro-batch.

    Args:
        index: number of the micro-batch in the plan.
        samples: rows by their index in the update; only those of the micro-batch are read.
    """
    batch = plan.batches[index]
    rows = []
    for at in batch.rows:
        counts = [count for _, count in plan.rows[at].trained]
        positions = np.flatnonzero(samples[at].loss_mask)
        weights, units = np.repeat(plan.weights[at], counts), np.repeat(plan.units[at], counts)
        rows.append(_Row(samples[at], positions, weights, units, at))
    return _batch(rows, batch.layout, device, batch.first)


@dataclass(frozen=True, slots=True)
class _Row:
    sample: TrainingSample
    positions: Ints
    weights: Floats
    units: Ints
    index: int
    """Index among the update's samples."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.sample.token_ids


def _batch(rows: Sequence[_Row], layout: LayoutKind, device: torch.device | str, first: int) -> TrainBatch:
    laid_out, where = lay_out([row.token_ids for row in rows], layout, device)
    assert not any(0 in row.positions for row in rows), "a row begins with a prompt"

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(row.sample, name)[row.positions] for row in rows])

    row_of, turn_of = np.repeat(np.arange(len(rows)), [len(row.positions) for row in rows]), joined("turns")
    is_new_turn = (np.diff(turn_of, prepend=-1) != 0) | (np.diff(row_of, prepend=-1) != 0)
    states = [np.asarray(places)[row.positions - 1] for row, places in zip(rows, where, strict=True)]
    targets = [np.asarray(row.token_ids)[row.positions] for row in rows]
    units = [row.units for row in rows]
    codes = np.cumsum(is_new_turn) - 1
    whole = (row_of, np.concatenate(states), np.concatenate(targets), codes, turn_of, np.concatenate(units))
    real = (joined("advantages"), joined("rollout_logprobs"), np.concatenate([row.weights for row in rows]))
    row_N, state, target, turn_N, turn_index, unit_N = torch.from_numpy(np.stack(whole, axis=1)).unbind(1)
    advantage, rollout_logprob, weight_N = torch.from_numpy(np.stack(real, axis=1)).float().unbind(1)
    shown = torch.tensor([row.sample.is_demonstration for row in rows])
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
        groups=tuple(row.sample.ordinal for row in rows),
        unit=unit_N.to(device),
        first=first,
        demonstrated=shown[row_N].to(device) if shown.any() else None,
        columns={
            name: _further(rows, name).to(device)
            for name in dict.fromkeys(chain(*(row.sample.columns for row in rows)))
        },
    )


def _further(rows: Sequence[_Row], name: str) -> Tensor:
    """Return a further column of some rows; NaN, or -1 where it counts, for rows that do not have it."""
    is_count = (known := COLUMNS._all().get(name)) is not None and known.dtype == "int"
    pieces = [
        column[row.positions]
        if (column := row.sample.columns.get(name)) is not None
        else np.full(len(row.positions), -1.0 if is_count else np.nan)
        for row in rows
    ]
    joined = torch.from_numpy(np.concatenate(pieces))
    return joined.long() if is_count else joined.float()
