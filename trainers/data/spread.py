"""The training rows and columns of a step over the ranks: outlines of all rows on each rank, and rows where needed.

A rank builds the rows of the episodes that it played (or all, if it received all episodes). Before an update each rank
receives the rows of its micro-batches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym.credit.table import Floats
from agentgym.trainers.data.columns import Column, Recorded, record_columns, step_columns
from agentgym.trainers.data.outline import GroupMetadata
from agentgym.trainers.data.plan import RowOutline
from agentgym.trainers.data.samples import FilteredGroup, TrainingSample, at_sampled
from agentgym.trainers.distributed.ranks import Ranks


@dataclass(frozen=True, slots=True)
class StepRows:
    """The training rows of a step.

    Example:
        >>> rows = StepRows.of([], Ranks(), rollouts_are_sharded=False)
        >>> rows.outlines, rows.fetched(Ranks(), [()])
        ([], {})
    """

    outlines: list[RowOutline]
    """Outlines of all rows, equal on all ranks."""
    held: Mapping[int, TrainingSample]
    """The rows of this rank's episodes, by index."""
    rollouts_are_sharded: bool
    """True if each row is on one rank alone."""

    @classmethod
    def of(cls, samples: Sequence[TrainingSample], ranks: Ranks, *, rollouts_are_sharded: bool) -> StepRows:
        """Collect the outlines of all ranks' rows. If the rows are spread, all ranks must call this.

        Args:
            samples: the rows of this rank's episodes, in order.
        """
        outlines = [RowOutline.of(sample) for sample in samples]
        if not rollouts_are_sharded:
            return cls(outlines, dict(enumerate(samples)), rollouts_are_sharded)
        shares = ranks.gathered([outline.sketched() for outline in outlines])
        # One rank has all rows of a trajectory, and sorting keeps their order.
        every = sorted(
            ((outline, rank, at) for rank, share in enumerate(shares) for at, outline in enumerate(share)),
            key=lambda one: one[0].trajectory,
        )
        held = {index: samples[at] for index, (_, rank, at) in enumerate(every) if rank == ranks.rank}
        return cls([outline for outline, _, _ in every], held, rollouts_are_sharded)

    def fetched(self, ranks: Ranks, wanted: Sequence[Collection[int]]) -> dict[int, TrainingSample]:
        """Return the rows that this rank wants, from the ranks that have them.

        Args:
            wanted: the rows that each rank wants.
        """
        mine = wanted[ranks.rank]
        own = {row: self.held[row] for row in mine if row in self.held}
        if not self.rollouts_are_sharded:
            return own
        of_others = [() if rank == ranks.rank else rows for rank, rows in enumerate(wanted)]
        sent = {row: pack(self.held[row]) for rows in of_others for row in rows if row in self.held}
        received = ranks.fetched(sent, of_others)  # an empty parcel to itself
        return own | {row: unpack(packed) for row, packed in received.items()}


Columns = dict[str, NDArray[Any]]
Packed = tuple[NDArray[np.int32], NDArray[np.uint8], Columns, Columns, dict[str, Any]]
"""A row as it is sent: token ids, bits of its sampled tokens, columns of these, further ones, and single values."""
FILLS: Mapping[str, Any] = {
    "loss_mask": False,
    "advantages": 0.0,
    "rollout_logprobs": 0.0,
    "policy_versions": -1,
    "turns": -1,
}
"""Columns of a row, with their values at tokens that were not sampled."""


def pack(row: TrainingSample) -> Packed:
    """Return a row with a third of its bytes: columns over sampled tokens alone."""
    is_sampled = row.turns >= 0
    own = {name: getattr(row, name)[is_sampled] for name in FILLS}
    further = {name: column[is_sampled] for name, column in row.columns.items()}
    single = {"trajectory": row.trajectory, "ordinal": row.ordinal, "is_demonstration": row.is_demonstration}
    return np.asarray(row.token_ids, dtype=np.int32), np.packbits(is_sampled), own, further, single


def unpack(packed: Packed) -> TrainingSample:
    """Return the row that :func:`pack` packed.

    Example:
        >>> turns = np.array([-1, 0])
        >>> row = TrainingSample(
        ...     token_ids=(7, 9), loss_mask=turns >= 0, advantages=np.array([0, 0.5]), rollout_logprobs=np.zeros(2),
        ...     policy_versions=turns, turns=turns, trajectory=3, ordinal=1,
        ... )
        >>> again = unpack(pack(row))
        >>> again.token_ids, again.advantages.tolist(), again.turns.tolist(), again.trajectory
        ((7, 9), [0.0, 0.5], [-1, 0], 3)
    """
    token_ids, bits, own, further, single = packed
    is_sampled = np.unpackbits(bits, count=len(token_ids)).astype(np.bool_)
    spread_out = {name: at_sampled(is_sampled, column, FILLS[name]) for name, column in own.items()}
    columns = {name: at_sampled(is_sampled, column, np.nan) for name, column in further.items()}
    return TrainingSample(token_ids=tuple(token_ids.tolist()), columns=columns, **{**single, **spread_out})


def columns_of_step(
    verdicts: Sequence[FilteredGroup], columns: Sequence[Column], ranks: Ranks, *, rollouts_are_sharded: bool
) -> Recorded:
    """Return the columns of the groups that this rank has, over their own units.

    A column over the step reads all groups, whose values ranks then send each other.
    """
    own: dict[int, Mapping[str, Floats]] = {
        verdict.group.ordinal: record_columns(verdict.group, columns)
        for verdict in verdicts
        if not isinstance(verdict.group, GroupMetadata)
    }
    if all(one.phase != "step" for one in columns):
        return own
    sizes = {verdict.group.ordinal: len(verdict.group.valid) for verdict in verdicts}
    every: Recorded = own
    if rollouts_are_sharded:
        coarse = {one.name for one in columns if one.unit in ("group", "trajectory")}
        mine = {
            ordinal: {name: values for name, values in known.items() if name in coarse}
            for ordinal, known in own.items()
        }
        parts: dict[int, Mapping[str, Floats]] = {}
        for part in ranks.gathered(mine):
            parts |= part
        every = {ordinal: parts[ordinal] for ordinal in sizes}
    over_step = step_columns(every, sizes, columns)
    return {ordinal: {**over_step[ordinal], **known} for ordinal, known in own.items()}
