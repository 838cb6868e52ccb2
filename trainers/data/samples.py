"""Build training rows from groups and their credit: one row per segment, so that a prompt is not repeated per turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentgym.credit.credited import CreditColumns, credit_columns, turn_credits
from agentgym.credit.table import Bools, Floats, Ints
from agentgym.errors import ConfigError
from agentgym.rollout.record import GroupRecord
from agentgym.trainers.data.columns import Column, Recorded, over_tokens, record_columns
from agentgym.trainers.data.outline import GroupMetadata
from agentgym.types import Segment, TrajectoryGroup

ZERO = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """One training row: a segment with an advantage on every sampled token. All columns have length ``T``.

    Example (prompt 7 8, the policy sampled 9 2)::

        token_ids   7      8      9     2
        loss_mask   False  False  True  True
        advantages  0.0    0.0    0.5   0.5
        turns       -1     -1     0     0
    """

    token_ids: tuple[int, ...]
    loss_mask: Bools
    advantages: Floats
    rollout_logprobs: Floats
    policy_versions: Ints
    turns: Ints
    """Turn of the trajectory that each token was sampled in, -1 for tokens that were not sampled."""
    trajectory: int
    """Number of the trajectory in the batch that the row is a segment of."""
    ordinal: int
    """Ordinal of the task that the row belongs to."""
    is_demonstration: bool = False
    """True for a row of an episode that the oracle played; its ``rollout_logprobs`` mean nothing."""
    columns: Mapping[str, Floats] = field(default_factory=dict)
    """Further columns that the loss reads (:mod:`agentgym.trainers.data.columns`), NaN at tokens that were not
    sampled."""


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
) -> list[TrainingSample]:
    """Build the training rows of the groups that train, in order; turns with ``loss_weight`` 0 are masked.

    All tokens of a turn have the turn's advantage, unless the estimator works per token. A group whose tokens another
    rank has gives no rows; trajectories are numbered as if it did.

    Args:
        columns: further columns of the rows; those of phase ``update`` are computed later.
        recorded: the values of these columns, as :func:`agentgym.trainers.data.columns.step_columns` returns them; by
            default those of phase ``record`` are computed here.
        scored: columns that models computed.
    """
    samples: list[TrainingSample] = []
    num_trajectories = 0
    for verdict in verdicts:
        if verdict.dropped is not None:
            continue
        group, start = verdict.group, 0
        if isinstance(group, GroupMetadata):
            num_trajectories += len(group.valid)
            continue
        of_credit = _columns(group, verdict.credit)
        is_sampled = of_credit["turns"] >= 0
        values = record_columns(group, columns) if recorded is None else recorded[group.ordinal]
        further = {
            name: at_sampled(is_sampled, column, np.nan) for name, column in over_tokens(group, values, columns).items()
        }
        for member, trajectory in enumerate(group.valid):
            for number, segment in enumerate(trajectory.segments):
                ids = segment.token_ids
                here = slice(start, start + len(segment.token_ids))
                own = (
                    {}
                    if number
                    else {
                        name: _over_tokens(segment, known[group.ordinal, member])
                        for name, known in (scored or {}).items()
                        if (group.ordinal, member) in known
                    }
                )
                sample = TrainingSample(
                    token_ids=ids,
                    trajectory=num_trajectories,
                    ordinal=group.ordinal,
                    is_demonstration=trajectory.is_demonstration,
                    columns={name: column[here] for name, column in further.items()} | own,
                    **{name: column[here] for name, column in of_credit.items()},
                )
                samples.append(sample)
                start += len(ids)
            num_trajectories += 1
    return samples


def at_sampled(is_sampled: Bools, of_sampled: NDArray[Any], fill: float) -> NDArray[Any]:
    """Place a column of sampled tokens among all tokens."""
    everywhere = np.full(len(is_sampled), fill, of_sampled.dtype)
    everywhere[is_sampled] = of_sampled
    return everywhere


def _over_tokens(segment: Segment, of_sampled: Floats) -> Floats:
    """Return values of a segment's sampled tokens over all its tokens, NaN for the others."""
    column = np.full(len(segment.token_ids), np.nan)
    column[np.asarray(segment.loss_mask, dtype=np.bool_)] = of_sampled
    return column


def _columns(group: TrajectoryGroup, credit: CreditColumns) -> dict[str, NDArray[Any]]:
    """Return the columns of all rows of a group, concatenated."""
    if not (whole := np.isin(credit.loss_weight, (0.0, 1.0))).all():
        raise ConfigError(
            f"credit gives turns a loss_weight of {credit.loss_weight[~whole][0]:g}, and the trainer takes 0 or 1: "
            "multiply the advantage instead"
        )
    turns = [turn for trajectory in group.valid for turn in trajectory.turns]
    index = [at for trajectory in group.valid for at in range(len(trajectory.turns))]
    sampled = [len(turn.completion.token_ids) for turn in turns]
    lengths = [length for turn, count in zip(turns, sampled, strict=True) for length in (len(turn.prompt_ids), count)]
    is_sampled = np.repeat(np.tile([False, True], len(turns)), lengths)
    trains = np.repeat(credit.loss_weight > 0, sampled)

    def column(of_sampled: NDArray[Any], fill: float) -> NDArray[Any]:
        return at_sampled(is_sampled, of_sampled, fill)

    def recorded(values: Iterable[Sequence[float]], dtype: type) -> NDArray[Any]:
        return np.fromiter(chain.from_iterable(values), dtype, sum(sampled))

    of_token = credit.token_advantage
    return {
        "loss_mask": column(trains if credit.token_keep is None else trains & credit.token_keep, False),
        "advantages": column(np.repeat(credit.advantage, sampled) if of_token is None else of_token, 0.0),
        "rollout_logprobs": column(recorded((turn.completion.logprobs for turn in turns), np.float64), 0.0),
        "policy_versions": column(recorded((turn.completion.policy_versions for turn in turns), np.int64), -1),
        "turns": column(np.repeat(np.array(index, np.int64), sampled), -1),
    }
