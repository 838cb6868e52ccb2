"""Rows over the ranks: outlines of all rows on each rank, rows where needed, and the micro-batches of each rank.

A rank builds the rows of the episodes that it played (or all, if it received all episodes). All ranks plan the same
micro-batches, and each receives the rows of its share.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from agentgym.credit.table import Floats
from agentgym.trainers.data.batch import Batch, make_batch
from agentgym.trainers.data.columns import Column, Recorded, record_columns, step_columns
from agentgym.trainers.data.outline import GroupMetadata, RemoteValues
from agentgym.trainers.data.plan import BatchPlan, RowOutline, plan_batches
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.samples import FilteredGroup
from agentgym.trainers.distributed.ranks import Ranks, Share


@dataclass(frozen=True, slots=True)
class RankRows:
    """Rows of which each rank has some or all.

    Example:
        >>> rows = RankRows.of([], Ranks(), is_spread=False)
        >>> rows.outlines, rows.fetched(Ranks(), [()])
        ([], {})
    """

    outlines: list[RowOutline]
    """Outlines of all rows, equal on all ranks."""
    held: Mapping[int, Row]
    """The rows that this rank has, by index."""
    is_spread: bool
    """True if each row is on one rank alone."""
    of_ranks: Sequence[Collection[int]] = ()
    """The indices of the rows that each rank made, if each made its own."""

    @classmethod
    def of(cls, rows: Sequence[Row], ranks: Ranks, *, is_spread: bool) -> RankRows:
        """Collect the outlines of all ranks' rows, in order of trajectories. All ranks must call this.

        Args:
            rows: this rank's own rows, in order; if they are not spread, all rows.
        """
        outlines = [RowOutline.of(row) for row in rows]
        if not is_spread or ranks.count == 1:
            return cls(outlines, dict(enumerate(rows)), is_spread, [range(len(rows))] * ranks.count)
        shares = ranks.gathered([outline.sketched() for outline in outlines])
        # One rank has all rows of a trajectory, and sorting keeps their order.
        every = sorted(
            ((outline, rank, at) for rank, share in enumerate(shares) for at, outline in enumerate(share)),
            key=lambda one: one[0].trajectory,
        )
        held = {index: rows[at] for index, (_, rank, at) in enumerate(every) if rank == ranks.rank}
        of_ranks = [[index for index, (_, rank, _) in enumerate(every) if rank == of] for of in range(ranks.count)]
        return cls([outline for outline, _, _ in every], held, is_spread, of_ranks)

    @classmethod
    def known(cls, rows: Sequence[Row]) -> RankRows:
        """Return rows that all ranks list in the same order; the tokens of another rank are ``RemoteValues``."""
        held = {index: row for index, row in enumerate(rows) if not isinstance(row.token_ids, RemoteValues)}
        return cls([RowOutline.of(row) for row in rows], held, is_spread=True)

    def fetched(self, ranks: Ranks, wanted: Sequence[Collection[int]]) -> dict[int, Row]:
        """Return the rows that this rank wants, from the ranks that have them. If rows are spread, all must call this.

        Args:
            wanted: the rows that each rank wants.
        """
        own = {row: self.held[row] for row in wanted[ranks.rank] if row in self.held}
        if not self.is_spread:
            return own
        of_others = [() if rank == ranks.rank else rows for rank, rows in enumerate(wanted)]
        return own | ranks.fetched(self.held, of_others)  # an empty parcel to itself


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatches:
    """The micro-batches of some rows, which all ranks plan alike, and those that this rank needs."""

    plan: BatchPlan
    share: Share
    """This rank's share of the micro-batches."""
    indices: Sequence[int]
    """The index among all rows of each row of the plan."""
    wanted: Sequence[Sequence[int]]
    """The indices of the rows that each rank needs."""
    rows: Mapping[int, Row]
    """This rank's rows, by their index in the plan."""
    batches: Mapping[int, Batch]
    """The micro-batches that this rank needs, by their number in the plan, ascending."""

    @classmethod
    def of(
        cls,
        rows: RankRows,
        plan: BatchPlan,
        ranks: Ranks,
        device: torch.device,
        *,
        indices: Sequence[int] | None = None,
        width: int = 1,
        needs_all: bool = False,
        forwards_last: bool = True,
    ) -> RankBatches:
        """Receive the rows of this rank's share of a plan, and make its micro-batches. All ranks must call this.

        Args:
            indices: the rows that were planned, all by default.
            width: see :meth:`~agentgym.trainers.distributed.ranks.Ranks.share`.
            needs_all: each rank needs all micro-batches, not only those of its share.
            forwards_last: see :func:`~agentgym.trainers.data.batch.make_batch`.
        """
        every = range(len(plan.batches))
        shares = [ranks.share(len(plan.batches), width=width, of=rank) for rank in range(ranks.count)]
        needed = [every if needs_all else sorted({index for index, _ in share}) for share in shares]
        indices = range(len(plan.rows)) if indices is None else indices
        wanted = [[indices[at] for index in own for at in plan.batches[index].rows] for own in needed]
        place = {row: at for at, row in enumerate(indices)}
        held = {place[index]: row for index, row in rows.fetched(ranks, wanted).items()}
        made = {at: make_batch(plan, at, held, device, forwards_last=forwards_last) for at in needed[ranks.rank]}
        return cls(plan=plan, share=shares[ranks.rank], indices=indices, wanted=wanted, rows=held, batches=made)

    @classmethod
    def read(
        cls,
        rows: RankRows,
        ranks: Ranks,
        device: torch.device,
        *,
        tokens_per_microbatch: int,
        forwards_last: bool = True,
    ) -> RankBatches:
        """Plan padded micro-batches of all rows, and make those of this rank's share. All ranks must call this."""
        plan = plan_batches(rows.outlines, tokens_per_microbatch=tokens_per_microbatch, num_lanes=ranks.count)
        return cls.of(rows, plan, ranks, device, forwards_last=forwards_last)


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
