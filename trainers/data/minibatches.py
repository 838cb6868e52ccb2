"""Minibatches of a training step: which rows each optimizer update takes, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.data.batch import TrainBatch
from agentgym.trainers.data.samples import GroupVerdict, TrainingSample
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.losses.config import LossConfig

Rows = list[int]
"""Indices of training rows."""


def plan_minibatches(
    verdicts: Sequence[GroupVerdict], samples: Sequence[TrainingSample], config: LossConfig, seed: int
) -> list[list[Rows]]:
    """Return the rows of every minibatch of every epoch, ``[epoch][minibatch]``.

    ``minibatch="episodes"`` deals out whole groups. A group's advantages are relative to the group, so a minibatch of
    whole groups has as much to reinforce as to discourage. ``"tokens"`` deals out single episodes, each to the
    minibatch with the fewest trained tokens so far: minibatches then differ by one episode at most, and groups are
    split. The context windows of an episode stay together in both. ``"rows"`` deals out single rows, one from here and
    one from there, until each minibatch has ``rows_per_update`` or one less: verl cuts its batches so, wherever a group
    or an episode ends.

    The first epoch takes groups or episodes in order, so one epoch needs no seed. Later epochs shuffle them.

    Args:
        verdicts: of the groups that are trained, in the order of ``samples``.
        seed: of the shuffles. All ranks must pass the same one.
    """
    whole = _rows_of_groups(verdicts, samples)
    if config.minibatch == "tokens":
        units = [rows for group in whole for rows in _rows_of_episodes(group, samples)]
        weights = [sum(int(samples[at].loss_mask.sum()) for at in rows) for rows in units]
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

    They are computed once. Later epochs cut the same rows into other micro-batches.
    """

    def __init__(self) -> None:
        self._of_row: dict[int, Tensor] = {}

    def add(self, rows: Rows, batch: TrainBatch, logprob: Tensor) -> None:
        """Keep what was computed of a micro-batch of a minibatch's ``rows``."""
        counts = torch.bincount(batch.row, minlength=len(batch.samples)).tolist()
        parts = torch.split(logprob.cpu(), counts)
        self._of_row |= {rows[index]: part for index, part in zip(batch.samples, parts, strict=True)}

    def share(self, ranks: Ranks) -> None:
        """Give every rank the rows of all, since a later epoch gives a row to another rank."""
        self._of_row = {row: part for held in ranks.gathered(self._of_row) for row, part in held.items()}

    def of(self, rows: Rows, batch: TrainBatch) -> Tensor:
        """Return those of a micro-batch of a minibatch's ``rows``."""
        return torch.cat([self._of_row[rows[index]] for index in batch.samples]).to(batch.rollout_logprob.device)


def _rows_of_groups(verdicts: Iterable[GroupVerdict], samples: Sequence[TrainingSample]) -> list[Rows]:
    groups: list[Rows] = []
    num_trajectories = at = 0
    for verdict in verdicts:
        num_trajectories += sum(trajectory.status.is_evidence for trajectory in verdict.group.trajectories)
        first = at
        while at < len(samples) and samples[at].trajectory < num_trajectories:
            at += 1
        groups.append(list(range(first, at)))
    return groups


def _rows_of_episodes(rows: Rows, samples: Sequence[TrainingSample]) -> list[Rows]:
    episodes: dict[int, Rows] = {}
    for row in rows:
        episodes.setdefault(samples[row].trajectory, []).append(row)
    return list(episodes.values())


def _shuffled(num_units: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(num_units, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _balanced(order: Sequence[int], weights: Sequence[int], num_parts: int) -> list[list[int]]:
    """Give each unit, in order, to the lightest part."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    totals = [0] * num_parts
    for unit in order:
        lightest = totals.index(min(totals))
        parts[lightest].append(unit)
        totals[lightest] += weights[unit]
    return parts
