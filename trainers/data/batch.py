"""Build micro-batches of tensors from rows, with loss weights that are normalised over the whole update.

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

from agentgym.errors import ConfigError
from agentgym.trainers.data.columns import COLUMNS
from agentgym.trainers.data.layout import PAD_ID, Layout, hidden_states, lay_out
from agentgym.trainers.data.plan import BatchPlan, RowOutline, plan_batches
from agentgym.trainers.data.row import Row
from agentgym.trainers.types import Trunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch: the rows in their layout, and flat columns over their ``N`` tokens that are read.

    Besides the columns of its rows, a batch of training rows has ``turn`` (counted from 0 without gaps),
    ``trajectory``, ``loss_weight`` (of the token in the update's loss) and ``unit`` (of averaging, counted over the
    update).
    """

    layout: Layout
    """The input of the model."""
    row: Tensor
    """``[N]`` row of each token, ascending."""
    state: Tensor
    """``[N]`` index into :func:`~agentgym.trainers.data.layout.hidden_states` of the state that predicts the token."""
    target: Tensor
    """``[N]`` id of the token."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """Columns by name, ``[N]`` each; ``demonstrated`` is left out where no row is a demonstration."""
    rows: tuple[int, ...] = ()
    """Index of each row among the rows that were planned."""
    first: int = 0
    """Number of the update's trained tokens in the micro-batches before this one."""

    def __getitem__(self, name: str) -> Tensor:
        """Return a column that needs no scores of a model, ``[N]``; NaN or -1 if the rows have none.

        Raises:
            ConfigError: there is no such column.
        """
        if name in self.columns:
            return self.columns[name]
        if name in ("row", "token"):
            return self.row if name == "row" else self.target
        if name == "demonstrated":
            return torch.zeros_like(self.row, dtype=torch.bool)
        known = COLUMNS._all().get(name)
        if known is None and name != "logprob_teacher":  # which is NaN where nobody scored a row
            raise ConfigError(f"nothing provides {name!r}: no column has that name, and no prepare returned it")
        is_count = known is not None and known.dtype == "int"
        return torch.full_like(self.row, -1) if is_count else torch.full_like(self["advantage"], torch.nan)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that are read."""
        return int(self.row.numel())

    def states(self, trunk: Trunk) -> Tensor:
        """Return the hidden states that predict the tokens, ``[N, hidden]``."""
        return hidden_states(trunk, self.layout)[self.state]

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """Split values of the tokens by row."""
        return torch.split(values, torch.bincount(self.row, minlength=len(self.rows)).tolist())

    def with_columns(self, **columns: Tensor) -> Batch:
        """Return the micro-batch with other columns."""
        return replace(self, columns={**self.columns, **columns})

    def with_old_policy_as_sampler(self, logprob_old: Tensor) -> Batch:
        """Return the micro-batch with the old policy in place of a sampling policy for demonstrated tokens.

        Corrections, KL estimates and gaps between the two are then neutral for them.
        """
        if "demonstrated" not in self.columns:
            return self
        sampled = self["logprob_rollout"]
        return self.with_columns(logprob_rollout=torch.where(self["demonstrated"], logprob_old, sampled))


def build_batches(rows: Sequence[Row], *, device: torch.device | str = "cpu", **settings: Any) -> list[Batch]:
    """Build the micro-batches of one optimizer update, with the settings of ``plan_batches``."""
    plan, held = plan_batches([RowOutline.of(row) for row in rows], **settings), dict(enumerate(rows))
    return [make_batch(plan, index, held, device) for index in range(len(plan.batches))]


def make_batch(
    plan: BatchPlan, index: int, rows: Mapping[int, Row], device: torch.device | str, *, forwards_last: bool = True
) -> Batch:
    """Make the tensors of a planned micro-batch.

    Args:
        index: number of the micro-batch in the plan.
        rows: rows by their index in the plan; only those of the micro-batch are read.
        forwards_last: the model's input has the last token of each row, which predicts no other.
    """
    planned = plan.batches[index]
    chosen = [rows[at] for at in planned.rows]
    ids = [row.token_ids if forwards_last else row.token_ids[:-1] for row in chosen]
    laid_out, where = lay_out(ids, planned.layout, device, [row.spans for row in chosen])
    kept = [(row, row.in_batch) for row in chosen]
    places = [row.positions[some] for row, some in kept]
    counts = [len(some) for _, some in kept]

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate(
            [row.columns[name][some] if name in row.columns else np.full(len(some), np.nan) for row, some in kept]
        )

    def repeated(values: Sequence[object]) -> NDArray[Any]:
        return np.repeat(np.array(values), counts)

    columns = {name: joined(name) for name in dict.fromkeys(chain(*(row.columns for row in chosen)))}
    row_N = np.repeat(np.arange(len(chosen)), counts)
    if "turn_index" in columns:  # rows that an update trains, whose weights are the plan's
        turn = columns["turn_index"]
        of_plan = [([count for _, count in plan.rows[at].trained], at) for at in planned.rows]
        columns |= {
            "turn": np.cumsum((np.diff(turn, prepend=-1) != 0) | (np.diff(row_N, prepend=-1) != 0)) - 1,
            "trajectory": repeated([row.trajectory for row in chosen]),
            "loss_weight": np.concatenate([np.repeat(plan.weights[at], runs) for runs, at in of_plan]),
            "unit": np.concatenate([np.repeat(plan.units[at], runs) for runs, at in of_plan]),
        }
    if any(row.is_demonstration for row in chosen):
        columns["demonstrated"] = repeated([row.is_demonstration for row in chosen])
    state = [np.asarray(of_row)[some - 1] for of_row, some in zip(where, places, strict=True)]
    target = [
        # a state after a row's last token has no target, and its reader needs none
        np.append(row.token_ids, PAD_ID)[row.positions[some]] if row.targets is None else row.targets[some]
        for row, some in kept
    ]
    tensors = {name: _tensor(values).to(device) for name, values in columns.items() if name != "is_trained"}
    return Batch(
        layout=laid_out,
        row=_tensor(row_N).to(device),
        state=_tensor(np.concatenate(state)).to(device),
        target=_tensor(np.concatenate(target)).to(device),
        columns=tensors,
        rows=planned.rows,
        first=planned.first,
    )


def _tensor(values: NDArray[Any]) -> Tensor:
    """Return a column as a tensor: real numbers in float32, others as they are."""
    return torch.from_numpy(values).float() if values.dtype.kind == "f" else torch.from_numpy(values)
