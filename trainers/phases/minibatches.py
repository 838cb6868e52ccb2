"""Minibatches of a training step: the rows of each optimizer update, epoch by epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.plan import RowOutline
from agentgym.trainers.data.samples import FilteredGroup
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.losses.config import LossConfig

Rows = list[int]
"""Indices of training rows."""


def plan_minibatches(
    verdicts: Sequence[FilteredGroup], rows: Sequence[RowOutline], config: LossConfig, seed: int
) -> list[list[Rows]]:
    """Return the rows of every minibatch of every epoch, ``[epoch][minibatch]``.

    * ``minibatch="episodes"`` distributes whole groups. The advantages of a group are relative to the group, so in each
      minibatch positive and negative advantages balance.
    * ``"tokens"`` distributes single episodes, each to the minibatch with the fewest trained tokens so far. Sizes of
      minibatches then differ by one episode at most, but groups are split.
    * ``"rows"`` distributes single rows, so that each minibatch has ``rows_per_update`` rows or one less. verl splits
      its batches like this, without regard to groups and episodes.

    With the first two the context windows of an episode stay together. The first epoch takes groups or episodes in
    order, so one epoch needs no seed. Later epochs shuffle them.

    Args:
        verdicts: verdicts of the trained groups, in the order of ``rows``.
        rows: outlines of all rows of the step.
        seed: seed of the shuffles. All ranks must pass the same one.
    """
    whole = [group for group in _rows_of_groups(verdicts, rows) if group]  # a role may have no turn in one
    if config.minibatch == "tokens":
        units = [own for group in whole for own in _rows_of_episodes(group, rows)]
        weights = [sum(rows[at].num_trained for at in own) for own in units]
        num_parts = min(config.num_updates, max(1, sum(weight > 0 for weight in weights)))
    elif config.minibatch == "rows":
        units, weights = [[row] for group in whole for row in group], []
        num_parts = -(-len(units) // config.rows_per_update)
    else:
        units, weights = whole, []
        num_parts = min(config.num_updates, len(units))
    plan = []
    for epoch in range(config.num_epochs if units else 0):
        order = _shuffled(len(units), derive_seed(seed, "epoch", epoch)) if epoch else list(range(len(units)))
        parts = _balanced(order, weights, num_parts) if weights else [order[at::num_parts] for at in range(num_parts)]
        plan.append([[row for unit in part for row in units[unit]] for part in parts])
    return plan


class OldLogprobs:
    """Log-probabilities under the policy before a step's first update, row by row.

    They are computed once and stored by row, because later epochs split the same rows into other micro-batches.
    """

    def __init__(self, of_row: Mapping[int, Tensor] | None = None) -> None:
        self._of_row: dict[int, Tensor] = dict(of_row or {})

    def add(self, rows: Sequence[int], batch: Batch, logprob: Tensor) -> None:
        """Store the log-probabilities of a micro-batch of a minibatch's ``rows``."""
        # clones: a view would keep, and send, the whole micro-batch's
        self._of_row |= {
            rows[index]: part.clone() for index, part in zip(batch.rows, batch.split(logprob.cpu()), strict=True)
        }

    def fetched(self, ranks: Ranks, wanted: Sequence[Collection[int]]) -> OldLogprobs:
        """Return the rows that this rank wants, which others may have computed. All ranks must call this.

        Args:
            wanted: the rows that each rank wants.
        """
        return OldLogprobs(ranks.fetched(self._of_row, wanted))

    def of(self, rows: Sequence[int], batch: Batch) -> Tensor:
        """Return the log-probabilities of a micro-batch of a minibatch's ``rows``."""
        return torch.cat([self._of_row[rows[index]] for index in batch.rows]).to(batch.row.device)


def _rows_of_groups(verdicts: Iterable[FilteredGroup], rows: Sequence[RowOutline]) -> list[Rows]:
    groups: list[Rows] = []
    num_trajectories = at = 0
    for verdict in verdicts:
        num_trajectories += sum(trajectory.status.is_evidence for trajectory in verdict.group.trajectories)
        first = at
        while at < len(rows) and rows[at].trajectory < num_trajectories:
            at += 1
        groups.append(list(range(first, at)))
    return groups


def _rows_of_episodes(group: Rows, rows: Sequence[RowOutline]) -> list[Rows]:
    episodes: dict[int, Rows] = {}
    for row in group:
        episodes.setdefault(rows[row].trajectory, []).append(row)
    return list(episodes.values())


def _shuffled(num_units: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(num_units, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _balanced(order: Sequence[int], weights: Sequence[int], num_parts: int) -> list[list[int]]:
    """Distribute the units: each, in order, goes to the part with the smallest weight so far."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    totals = [0] * num_parts
    for unit in order:
        lightest = totals.index(min(totals))
        parts[lightest].append(unit)
        totals[lightest] += weights[unit]
    return parts
