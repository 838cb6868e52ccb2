"""Build training rows from groups and their credit: one row per segment, so that a prompt is not repeated per turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentgym.credit.credited import CreditColumns, credit_columns, turn_credits
from agentgym.credit.table import Floats
from agentgym.errors import ConfigError
from agentgym.rollout.record import GroupRecord
from agentgym.trainers.data.columns import Column, Recorded, over_tokens, record_columns
from agentgym.trainers.data.outline import GroupMetadata
from agentgym.trainers.data.row import Row
from agentgym.types import TrajectoryGroup

ZERO = 1e-8


@dataclass(frozen=True, slots=True)
class FilteredGroup:
    """A group and its rows of the batch's credit; ``dropped`` is the reason if the group is not trained, else None."""

    group: TrajectoryGroup
    credit: CreditColumns
    dropped: str | None

    @classmethod
    def of_record(cls, record: GroupRecord) -> FilteredGroup:
        """Restore a verdict from a record, to train on recorded groups."""
        return cls(record.group, credit_columns([record.group], [record.credit]), record.dropped)

    def to_record(self, columns: Mapping[str, list[object]] | None = None) -> GroupRecord:
        """Return the record of this verdict, with the columns that credit read in addition to the episodes."""
        (credit,) = turn_credits([self.group], self.credit)
        return GroupRecord(group=self.group, credit=credit, dropped=self.dropped, columns=dict(columns or {}))


def filter_groups(
    groups: Collection[TrajectoryGroup],
    credit: CreditColumns,
    min_valid: int,
    zero_variance_filter: Literal["advantage", "return", "off"],
) -> list[FilteredGroup]:
    """Decide which groups train: those with enough valid members and, by ``zero_variance_filter``, a learning signal.

    Args:
        credit: the credit of all turns of the groups' valid trajectories, in order.
    """
    verdicts = []
    for group, rows in zip(groups, credit.split(groups), strict=True):
        dropped = None
        if len(group.valid) < min_valid:
            dropped = "too_few_valid"
        elif (zero_variance_filter == "return" and len({t.reward for t in group.valid}) == 1) or (
            zero_variance_filter == "advantage" and not _teaches(rows)
        ):
            dropped = "zero_variance"
        verdicts.append(FilteredGroup(group, rows, dropped))
    return verdicts


def _teaches(credit: CreditColumns) -> bool:
    advantage = credit.advantage
    if credit.token_advantage is not None:
        advantage = np.concatenate([credit.token_advantage, advantage[credit.num_tokens == 0]])
    return bool((np.abs(advantage) >= ZERO).any())


Scored = Mapping[str, Mapping[tuple[int, int], Floats]]
"""For each column that a model computes, by (ordinal of a group, index among its valid members): the values of the
sampled tokens of the episode's first context window."""


def build_samples(
    verdicts: Iterable[FilteredGroup],
    columns: Sequence[Column] = (),
    recorded: Recorded | None = None,
    scored: Scored | None = None,
    role: str = "",
) -> list[Row]:
    """Build a role's training rows of the groups that train, in order; turns with ``loss_weight`` 0 are masked.

    All tokens of a turn have the turn's advantage, unless the estimator works per token. A group whose tokens another
    rank has gives no rows; trajectories are numbered as if it did.

    Args:
        columns: further columns of the rows; those of phase ``update`` are computed later.
        recorded: the values of these columns, as :func:`agentgym.trainers.data.columns.step_columns` returns them; by
            default those of phase ``record`` are computed here.
        scored: columns that models computed.
        role: the role whose segments become rows, as :attr:`Segment.role` names it; empty for the policy.
    """
    rows: list[Row] = []
    num_trajectories = 0
    for verdict in verdicts:
        if verdict.dropped is not None:
            continue
        group, start = verdict.group, 0
        if isinstance(group, GroupMetadata):
            num_trajectories += len(group.valid)
            continue
        values = record_columns(group, columns) if recorded is None else recorded[group.ordinal]
        known = _of_credit(group, verdict.credit) | over_tokens(group, values, columns)
        for member, trajectory in enumerate(group.valid):
            for number, segment in enumerate(trajectory.segments):
                positions = np.flatnonzero(segment.loss_mask)
                here = slice(start, start + len(positions))
                start += len(positions)
                if segment.role != role:
                    continue
                of_models = {
                    name: found[group.ordinal, member]
                    for name, found in (scored or {}).items()
                    if number == 0 and (group.ordinal, member) in found
                }
                row = Row(
                    token_ids=segment.token_ids,
                    positions=positions,
                    columns={name: column[here] for name, column in known.items()} | of_models,
                    trajectory=num_trajectories,
                    ordinal=group.ordinal,
                    is_demonstration=trajectory.is_demonstration,
                )
                rows.append(row)
            num_trajectories += 1
    return rows


def of_role(group: TrajectoryGroup, role: str) -> TrajectoryGroup:
    """Return a group whose episodes have a role's segments alone; those without one are left out."""
    if isinstance(group, GroupMetadata):
        return group
    own = (
        replace(one, segments=tuple(segment for segment in one.segments if segment.role == role))
        for one in group.trajectories
    )
    return replace(group, trajectories=tuple(one for one in own if one.segments))


def _of_credit(group: TrajectoryGroup, credit: CreditColumns) -> dict[str, NDArray[Any]]:
    """Return the columns over the sampled tokens of a group that follow from its credit."""
    if not (whole := np.isin(credit.loss_weight, (0.0, 1.0))).all():
        raise ConfigError(
            f"credit gives turns a loss_weight of {credit.loss_weight[~whole][0]:g}, and the trainer takes 0 or 1: "
            "multiply the advantage instead"
        )
    turns = [turn for trajectory in group.valid for turn in trajectory.turns]
    index = [at for trajectory in group.valid for at in range(len(trajectory.turns))]
    sampled = [len(turn.completion.token_ids) for turn in turns]
    trains = np.repeat(credit.loss_weight > 0, sampled)
    logprobs = chain.from_iterable(turn.completion.logprobs for turn in turns)
    of_token = credit.token_advantage
    return {
        "is_trained": trains if credit.token_keep is None else trains & credit.token_keep,
        "advantage": np.repeat(credit.advantage, sampled) if of_token is None else of_token,
        "logprob_rollout": np.fromiter(logprobs, np.float64, sum(sampled)),
        "turn_index": np.repeat(np.array(index, np.int64), sampled),
    }
