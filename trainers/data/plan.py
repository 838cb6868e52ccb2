"""Plan the micro-batches of an optimizer update and the weights of its tokens, from outlines of its training rows.

An outline is small, and does not hold tokens. All ranks make the same plan although each has the tokens of some rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentgym.credit.table import Floats, Ints
from agentgym.errors import ConfigError
from agentgym.media import has_media
from agentgym.trainers.data.layout import common_prefix
from agentgym.trainers.data.outline import RemoteValues
from agentgym.trainers.data.row import Row
from agentgym.trainers.kinds import LayoutKind

Unit = Literal["trajectory", "turn"]
SKETCHED = 64
"""Number of tokens that one checksum of a sketch covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutline:
    """All that a plan needs to know about a training row.

    Example:
        >>> one = RowOutline(trajectory=0, ordinal=0, num_tokens=3, trained=((0, 1),), path=(7, 8, 9))
        >>> one.num_shared(replace(one, path=(7, 8, 5))), one.num_trained
        (2, 1)
    """

    trajectory: int
    """Number of the trajectory in the batch."""
    ordinal: int
    """Ordinal of the task."""
    num_tokens: int
    trained: tuple[tuple[int, int], ...]
    """Turns with trained tokens, in order, each with the number of these tokens."""
    path: tuple[int, ...]
    """The row's token ids; in a sketch one checksum for each prefix of a multiple of ``stride`` tokens."""
    stride: int = 1
    has_media: bool = False
    """True if the row holds images, whose rows are padded alone."""

    @classmethod
    def of(cls, row: Row) -> RowOutline:
        """Return the outline of a row, with its token ids if they are here."""
        turns = row.columns["turn_index"][row.in_batch] if "turn_index" in row.columns else np.zeros(0, np.int64)
        starts = [*range(min(1, len(turns))), *(np.flatnonzero(np.diff(turns)) + 1).tolist(), len(turns)]
        ids = () if isinstance(row.token_ids, RemoteValues) else tuple(row.token_ids)
        return cls(
            trajectory=row.trajectory,
            ordinal=row.ordinal,
            num_tokens=len(row.token_ids),
            trained=tuple((int(turns[start]), end - start) for start, end in pairwise(starts)),
            path=ids,
            has_media=has_media(ids),
        )

    @property
    def num_trained(self) -> int:
        """Number of trained tokens."""
        return sum(count for _, count in self.trained)

    def sketched(self) -> RowOutline:
        """Return the outline without token ids: checksums tell how long a prefix two rows share, to 64 tokens."""
        ids, checksum, path = np.asarray(self.path, dtype=np.int64), 0, []
        for start in range(0, len(ids) - SKETCHED + 1, SKETCHED):
            checksum = zlib.crc32(ids[start : start + SKETCHED].tobytes(), checksum)
            path.append(checksum)
        return replace(self, path=tuple(path), stride=SKETCHED)

    def num_shared(self, other: RowOutline) -> int:
        """Return the length of the common prefix of two rows; from sketches, a lower bound of it."""
        return self.stride * common_prefix(self.path, other.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """The rows of a micro-batch, and its place in the update."""

    rows: tuple[int, ...]
    """Indices into the rows of the update."""
    layout: LayoutKind
    num_forwarded: int
    """Number of tokens in the model's input, padding included."""
    num_trained: int
    first: int = 0
    """Number of the update's trained tokens in the micro-batches before this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The micro-batches of an update, and the weights of its tokens, normalised over all rows of the update."""

    rows: tuple[RowOutline, ...]
    batches: tuple[PlannedBatch, ...]
    weights: tuple[Floats, ...]
    """For each row the weight of a token in the loss, by turn as in :attr:`RowOutline.trained`."""
    units: tuple[Ints, ...]
    """For each row the units of averaging, by turn; units are counted over the update."""

    @property
    def num_trained(self) -> int:
        """Number of trained tokens of the update."""
        return sum(batch.num_trained for batch in self.batches)

    @property
    def last_turn(self) -> int:
        """Highest index of a turn with trained tokens."""
        return max((turn for row in self.rows for turn, _ in row.trained), default=0)


def plan_batches(
    rows: Sequence[RowOutline],
    *,
    aggregation: str = "token-mean",
    unit: Unit = "trajectory",
    norm_length: int = 1024,
    tokens_per_microbatch: int = 8192,
    layout: LayoutKind = "rows",
    num_lanes: int = 1,
    min_shared_tokens: int = 0,
) -> BatchPlan:
    """Plan the micro-batches of one optimizer update, each of at most ``tokens_per_microbatch`` tokens with padding.

    Args:
        unit: the sequence of the ``seq-mean`` aggregations. All segments of a trajectory are one sequence.
        layout: ``rows`` pads rows of similar length. ``prefix`` forwards the common prefix of a group's rows once.
            ``packed`` puts many rows into one sequence, with each distinct prefix once.
        num_lanes: number of ranks that take micro-batches in turn and wait for each other after each one. Micro-batches
            are then sorted by size, so that those of a round are similar, and are no larger than the rounds demand.
        min_shared_tokens: tokens that a group's common prefix must save for micro-batches of its own. On a GPU a
            further forward and backward pass takes some time however few tokens it has.
    """
    units = _numbered([[(row.trajectory, turn if unit == "turn" else 0) for turn, _ in row.trained] for row in rows])
    counts = [count for row in rows for _, count in row.trained]
    weights = _weights(np.array([at for own in units for at in own], np.int64), counts, aggregation, norm_length)
    ends = np.cumsum([len(row.trained) for row in rows], dtype=np.int64)[:-1]
    split = _split_for(rows, layout, tokens_per_microbatch, num_lanes, min_shared_tokens)
    planned = [_planned(rows, some, kind) for some, kind in split]
    if num_lanes > 1:
        planned.sort(key=lambda batch: -batch.num_forwarded)
    return BatchPlan(
        rows=tuple(rows),
        batches=tuple(_placed(planned)),
        weights=tuple(np.split(weights, ends)) if rows else (),
        units=tuple(np.array(own, np.int64) for own in units),
    )


def token_weights(units: NDArray[Any], aggregation: str, norm_length: int) -> Floats:
    """Return the weight of each trained token in the update's loss, shape ``[N]``.

    | aggregation | a token's weight |
    |---|---|
    | ``token-mean`` (DAPO) | 1 / number of trained tokens |
    | ``seq-mean-token-mean`` (GRPO, GSPO) | 1 / (tokens of its unit * number of units) |
    | ``seq-mean-token-sum`` | 1 / number of units |
    | ``seq-mean-token-sum-norm`` (Dr.GRPO, as in verl from 0.7.1 on) | 1 / (``norm_length`` * number of units) |

    Each is a mean, so twice as many equal units leave the loss and its gradient as they are. A unit without trained
    tokens does not count.

    Args:
        units: ``[N]`` the unit of each trained token: the number of its trajectory or of its turn.
        aggregation: one of the names above.
        norm_length: the constant of ``seq-mean-token-sum-norm``.

    Example:
        >>> token_weights(np.array([7, 8, 8]), "seq-mean-token-mean", 8).tolist()
        [0.5, 0.25, 0.25]
    """
    _, of_token = np.unique(units, return_inverse=True)
    return _weights(of_token, [1] * len(units), aggregation, norm_length)


def _weights(units: Ints, counts: Sequence[int], aggregation: str, norm_length: int) -> Floats:
    """Return the weight of a token for each run of ``counts`` tokens of one unit."""
    sizes = np.bincount(units, weights=counts)
    match aggregation:
        case "token-mean":
            return np.full(len(units), 1 / max(1, sum(counts)))
        case "seq-mean-token-mean":
            return np.asarray(1 / (len(sizes) * sizes[units]), dtype=np.float64)
        case "seq-mean-token-sum":
            return np.full(len(units), 1 / max(1, len(sizes)))
        case "seq-mean-token-sum-norm":
            return np.full(len(units), 1 / (norm_length * max(1, len(sizes))))
    raise AssertionError(f"aggregation {aggregation} got past the configuration's check")


def _numbered(keys: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Number keys from 0 by first appearance."""
    code: dict[Hashable, int] = {}
    return [[code.setdefault(key, len(code)) for key in own] for own in keys]


def of_similar_length(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Split rows into batches of at most ``room`` tokens with padding; return their indices.

    A longer row forms its own batch.

    Args:
        lengths: the number of tokens of each row.

    Example:
        >>> of_similar_length([4, 1, 2], 4)
        [[1, 2], [0]]
    """
    batches: list[list[int]] = []
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches and (len(batches[-1]) + 1) * lengths[at] <= room:
            batches[-1].append(at)
        else:
            batches.append([at])
    return batches


Split = list[tuple[Sequence[int], LayoutKind]]


def _split_for(
    rows: Sequence[RowOutline], layout: LayoutKind, room: int, num_lanes: int, min_shared_tokens: int
) -> Split:
    """Split rows so that ranks need no more rounds than with the whole room, and no more room than these rounds demand.

    Nine full micro-batches on eight ranks take two rounds, in the second of which one rank works. Sixteen of half the
    size take the time of one.
    """
    made = _micro_batches(rows, layout, room, min_shared_tokens)
    most = -(-len(made) // num_lanes) * num_lanes
    low, high = 1, room
    while num_lanes > 1 and low < high:
        middle = (low + high) // 2
        smaller = _micro_batches(rows, layout, middle, min_shared_tokens)
        if len(smaller) <= most:
            made, high = smaller, middle
        else:
            low = middle + 1
    return made


def _micro_batches(rows: Sequence[RowOutline], layout: LayoutKind, room: int, min_shared_tokens: int) -> Split:
    """Choose the rows of each micro-batch, and the cheapest layout for them."""
    if layout == "packed":
        if any(row.has_media for row in rows):
            raise ConfigError("loss.layout=packed takes no images: use loss.layout=prefix or rows (docs/vision.md)")
        return [(some, layout) for some in _packed(rows, room)]
    made: list[tuple[Sequence[int], LayoutKind]] = []
    alone: Sequence[int] = range(len(rows))
    if layout == "prefix":
        groups: dict[int, list[int]] = {}
        for at, row in enumerate(rows):
            if row.has_media:
                continue
            groups.setdefault(row.ordinal, []).append(at)
        shared = [some for group in groups.values() for some in _after_prefix(rows, group, room)]
        pays = [_pays([rows[at] for at in some], min_shared_tokens) for some in shared]
        made = [(some, layout) for some, does in zip(shared, pays, strict=True) if does]
        alone = [at for some, does in zip(shared, pays, strict=True) if not does for at in some]
        alone += [at for at, row in enumerate(rows) if row.has_media]
    split = of_similar_length([rows[at].num_tokens for at in alone], room)
    return made + [([alone[at] for at in some], "rows") for some in split]


def _after_prefix(rows: Sequence[RowOutline], group: Sequence[int], room: int) -> list[list[int]]:
    """Split rows as :func:`of_similar_length` does, but count the common prefix of a batch once."""
    batches: list[list[int]] = []
    num_shared = 0
    for at in sorted(group, key=lambda at: rows[at].num_tokens):
        length = rows[at].num_tokens
        if batches:
            num_shared = min(num_shared, rows[batches[-1][0]].num_shared(rows[at]))
            if num_shared + (len(batches[-1]) + 1) * (length - num_shared) <= room:
                batches[-1].append(at)
                continue
        batches.append([at])
        num_shared = length - 1
    return batches


def _pays(rows: Sequence[RowOutline], min_shared_tokens: int) -> bool:
    """Return True if the prefix layout, which needs a second forward call, saves at least a tenth of the tokens."""
    num_saved = (len(rows) - 1) * _shared(rows)
    return num_saved >= min_shared_tokens and 10 * num_saved >= len(rows) * rows[-1].num_tokens


def _shared(rows: Sequence[RowOutline]) -> int:
    """Return the length of the prefix that all rows share; at least one token of each row is not part of it."""
    if len(rows) < 2:
        return 0
    return min(*(rows[0].num_shared(row) for row in rows[1:]), min(row.num_tokens for row in rows) - 1)


def _packed(rows: Sequence[RowOutline], room: int) -> list[list[int]]:
    """Split rows into batches of at most ``room`` tokens, without counting the prefix shared with the row before."""
    batches: list[list[int]] = []
    size = 0
    # rows that begin alike are neighbours
    for at in sorted(range(len(rows)), key=lambda at: (rows[at].ordinal, rows[at].path)):
        if batches:
            size += rows[at].num_tokens - rows[batches[-1][-1]].num_shared(rows[at])
            if size <= room:
                batches[-1].append(at)
                continue
        batches.append([at])
        size = rows[at].num_tokens
    return batches


def _planned(rows: Sequence[RowOutline], some: Sequence[int], layout: LayoutKind) -> PlannedBatch:
    chosen = [rows[at] for at in some]
    longest = max(row.num_tokens for row in chosen)
    if layout == "packed":
        repeated = sum(row.num_shared(before) for before, row in pairwise(chosen))
        num_forwarded = sum(row.num_tokens for row in chosen) - repeated
    else:
        num_shared = _shared(chosen) if layout == "prefix" else 0
        num_forwarded = num_shared + len(chosen) * (longest - num_shared)
    return PlannedBatch(
        rows=tuple(some),
        layout=layout,
        num_forwarded=num_forwarded,
        num_trained=sum(row.num_trained for row in chosen),
    )


def _placed(batches: Sequence[PlannedBatch]) -> list[PlannedBatch]:
    placed: list[PlannedBatch] = []
    first = 0
    for batch in batches:
        placed.append(replace(batch, first=first))
        first += batch.num_trained
    return placed
