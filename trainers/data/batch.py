"""Build micro-batches of tensors from training rows, with loss weights that are normalised over the whole update.

The loss is a weighted sum over sampled tokens. The weights are computed here from all rows of the update, so that
gradients do not depend on how the rows are split into micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentgym.credit.table import Floats, Ints
from agentgym.trainers.data.layout import Layout, PaddedRows, common_prefix, lay_out, shared_prefix
from agentgym.trainers.data.samples import TrainingSample
from agentgym.trainers.losses.config import LayoutKind


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
    siblings: Tensor | None = None
    """``[N]`` number of the state in which the token's turn and a turn of another trajectory were sampled; -1 for other
    tokens. None if there is no such state."""
    samples: tuple[int, ...] = ()
    """Index of each row's sample in the argument of :func:`build_batches`."""
    trajectories: tuple[int, ...] = ()
    """Number of each row's trajectory."""
    demonstrated: Tensor | None = None
    """``[N]`` True for tokens of demonstrations, whose ``rollout_logprob`` is unknown; None if there are none."""
    teacher_logprob: Tensor | None = None
    """``[N]`` log-probability under the policy that sees a demonstration, NaN if unknown; None if all are."""
    first: int = 0
    """Number of the update's sampled tokens in the micro-batches before this one."""

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens."""
        return int(self.row.numel())

    def anchored(self, logprob_old: Tensor) -> TrainBatch:
        """Return the micro-batch with the old policy in place of a sampling policy for demonstrated tokens.

        Corrections, KL estimates and gaps between the two are then neutral for them.
        """
        if self.demonstrated is None:
            return self
        return replace(self, rollout_logprob=torch.where(self.demonstrated, logprob_old, self.rollout_logprob))

    @property
    def num_forwarded(self) -> int:
        """Number of tokens in the model's input, padding included."""
        prefix = self.layout.prefix_ids.numel() if isinstance(self.layout, PaddedRows) else 0
        return prefix + self.layout.input_ids.numel()


Unit = Literal["trajectory", "turn"]


class HasTokens(Protocol):
    """A row of token ids."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...


AnyRow = TypeVar("AnyRow", bound=HasTokens)


def token_weights(units: NDArray[Any], aggregation: str, norm_length: int) -> Floats:
    """Return the weight of each trained token in the update's loss, shape ``[N]``.

    | aggregation | a token's weight |
    |---|---|
    | ``token-mean`` (DAPO) | 1 / number of trained tokens |
    | ``seq-mean-token-mean`` (GRPO, GSPO) | 1 / (tokens of its unit * number of units) |
    | ``seq-mean-token-sum`` | 1 / number of units |
    | ``seq-mean-token-sum-norm`` (Dr.GRPO, as in verl) | 1 / ``norm_length`` |

    A unit without trained tokens does not count.

    Args:
        units: ``[N]`` the unit of each trained token: the number of its trajectory or of its turn.
        aggregation: one of the names above.
        norm_length: the constant of ``seq-mean-token-sum-norm``.

    Example:
        >>> token_weights(np.array([7, 8, 8]), "seq-mean-token-mean", 8).tolist()
        [0.5, 0.25, 0.25]
    """
    _, of_token, sizes = np.unique(units, return_inverse=True, return_counts=True)
    match aggregation:
        case "token-mean":
            return np.full(len(units), 1 / max(1, len(units)))
        case "seq-mean-token-mean":
            return np.asarray(1 / (len(sizes) * sizes[of_token]), dtype=np.float64)
        case "seq-mean-token-sum":
            return np.full(len(units), 1 / max(1, len(sizes)))
        case "seq-mean-token-sum-norm":
            return np.full(len(units), 1 / norm_length)
    raise AssertionError(f"aggregation {aggregation} got past the configuration's check")


def num_averaged(samples: Sequence[TrainingSample], aggregation: str, unit: Unit) -> int | None:
    """Return the divisor of :func:`token_weights` for these rows: the number of trained tokens, or of units with some.

    Divisors of groups add up to that of the update. A gradient can therefore be accumulated group by group, each
    multiplied by its own divisor, and divided by the sum at the end. None if the divisor is a constant.
    """
    if aggregation == "seq-mean-token-sum-norm":
        return None
    units = _units(samples, unit)
    return len(units) if aggregation == "token-mean" else len(np.unique(units))


def _units(samples: Sequence[TrainingSample], unit: Unit) -> Ints:
    """Return the unit of each trained token, numbered from 0 by first appearance."""
    none = np.empty(0, np.int64)
    units = np.concatenate([none, *(np.full(int(s.loss_mask.sum()), s.trajectory) for s in samples)])
    if unit == "turn":
        turn = np.concatenate([none, *(sample.turns[sample.loss_mask] for sample in samples)])
        units = units * (turn.max(initial=0) + 1) + turn
    _, first, code = np.unique(units, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[code]


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
    units = _units(samples, unit)
    weights = token_weights(units, aggregation, norm_length)
    positions = [np.flatnonzero(sample.loss_mask) for sample in samples]
    ends = np.cumsum([len(at) for at in positions], dtype=np.int64)[:-1]
    parts = zip(samples, positions, np.split(weights, ends), np.split(units, ends), strict=False)
    rows = [_Row(*part, index) for index, part in enumerate(parts)]
    batches: list[TrainBatch] = []
    for some, kind in _micro_batches(rows, layout, tokens_per_microbatch):
        first = batches[-1].first + batches[-1].num_tokens if batches else 0
        batches.append(_batch(some, kind, device, first))
    return batches


def by_size(batches: Sequence[TrainBatch]) -> list[TrainBatch]:
    """Sort an update's micro-batches by the number of their tokens.

    Ranks take micro-batches in turn and wait for each other after each one. Sorting gives neighbours similar sizes,
    which minimises the waiting time.
    """
    ordered: list[TrainBatch] = []
    first = 0
    for batch in sorted(batches, key=lambda batch: -batch.num_forwarded):
        ordered.append(replace(batch, first=first))
        first += batch.num_tokens
    return ordered


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


def _micro_batches(rows: Sequence[_Row], layout: LayoutKind, room: int) -> list[tuple[list[_Row], LayoutKind]]:
    """Choose the rows of each micro-batch, and the cheapest layout for them."""
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
    return made + [(some, "rows") for some in rows_of_similar_length(alone, room)]


def rows_of_similar_length(rows: Sequence[AnyRow], room: int) -> list[list[AnyRow]]:
    """Split rows into batches of at most ``room`` tokens with padding; a longer row forms its own batch."""
    batches: list[list[AnyRow]] = []
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        if batches and (len(batches[-1]) + 1) * len(row.token_ids) <= room:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _after_prefix(rows: Sequence[_Row], room: int) -> list[list[_Row]]:
    """Split rows as :func:`rows_of_similar_length` does, but count the common prefix of a batch once."""
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
    """Return True if the prefix layout, which needs a second forward call, saves at least a tenth of the tokens."""
    ids = [row.token_ids for row in rows]
    return 10 * (len(ids) - 1) * shared_prefix(ids) >= len(ids) * len(ids[-1])


def _packed(rows: Sequence[_Row], room: int) -> list[list[_Row]]:
    """Split rows into batches of at most ``room`` tokens, without counting the prefix shared with the row before."""
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
    taught = [row.sample.teacher_logprobs for row in rows]
    of_teacher = [
        np.full(len(row.positions), np.nan) if known is None else known[row.positions]
        for row, known in zip(rows, taught, strict=True)
    ]
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
        siblings=_siblings(rows, device),
        first=first,
        demonstrated=shown[row_N].to(device) if shown.any() else None,
        teacher_logprob=None
        if all(known is None for known in taught)
        else torch.from_numpy(np.concatenate(of_teacher)).float().to(device),
    )


def _siblings(rows: Sequence[_Row], device: torch.device | str) -> Tensor | None:
    """Return :attr:`TrainBatch.siblings` of some rows."""
    if all(row.sample.siblings is None for row in rows):
        return None
    none = [np.full(len(row.positions), -1) for row in rows]
    of_rows = [
        empty if row.sample.siblings is None else row.sample.siblings[row.positions]
        for row, empty in zip(rows, none, strict=True)
    ]
    return torch.from_numpy(np.concatenate(of_rows)).to(device)
