"""Random tables and padded layouts for the cases of credit components."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from agentgym.credit.parts import on_last_turn
from agentgym.credit.statistics import per_trajectory, token_rows
from agentgym.credit.table import TurnTable


class Double:
    """A library whose ``float32`` is ``float64``, so that a release computes in double precision."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, "float64" if name in ("float", "float32", "bfloat16") else name)


NUMPY, TORCH = Double(np), Double(torch)


@contextmanager
def double_precision() -> Iterator[None]:
    """Let new tensors, and those that call ``float()``, have double precision."""
    to_float, default = torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.float = to_float  # type: ignore[method-assign]
        torch.set_default_dtype(default)


def rewards_of(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draw returns: one value for all, zeros and ones, few values with ties, or normal numbers."""
    kind = rng.integers(4)
    if kind == 0:
        return np.full(size, rng.choice([0.0, 1.0, 0.1, -2.0]))
    if kind == 1:
        return rng.integers(0, 2, size).astype(np.float64)
    return rng.choice([-1.0, 0.0, 0.5, 1.0], size) if kind == 2 else rng.normal(size=size)


def random_table(
    rng: np.random.Generator, *, smallest: int = 1, largest: int = 6, max_turns: int = 4, size: int = 0
) -> TurnTable:
    """Draw a table of up to four groups with rewards on the last turn alone or on every turn.

    Args:
        rng: source of randomness.
        smallest: least members of a group.
        largest: most members of a group.
        max_turns: most turns of a trajectory.
        size: members of every group; 0 draws one size per group.
    """
    groups, rewards, states, valid = [], [], [], []
    for group in range(int(rng.integers(1, 5))):
        num_members = size or int(rng.integers(smallest, largest + 1))
        is_dense = rng.random() < 0.5
        for final in rewards_of(rng, num_members):
            num_turns = int(rng.integers(1, max_turns + 1))
            row = rewards_of(rng, num_turns) if is_dense else np.zeros(num_turns)
            row[-1] = final
            groups.append(group)
            rewards.append(row.tolist())
            states.append(rng.choice(["a", "b", "c"], num_turns).tolist())
            valid.append((rng.random(num_turns) < 0.8).tolist())
    table = TurnTable.from_lists(rewards=rewards, states=states, is_valid=valid, group_of_trajectory=groups)
    return table.with_columns(num_tokens=rng.integers(1, 5, len(table)))


def with_outcomes_only(table: TurnTable) -> TurnTable:
    """Return the table with each trajectory's return on its last turn."""
    return replace(table, reward=on_last_turn(table, per_trajectory(table, table.reward)))


@dataclass(frozen=True)
class Padded:
    """Index of each sampled token in a padded batch ``[B, L]``."""

    row: np.ndarray
    column: np.ndarray
    mask: torch.Tensor

    def spread(self, values: Any, fill: float = 0.0) -> torch.Tensor:
        """Return a padded batch with a value per sampled token, ``fill`` elsewhere."""
        batch = np.full(tuple(self.mask.shape), fill)
        batch[self.row, self.column] = values
        return torch.as_tensor(batch)

    def read(self, batch: torch.Tensor) -> np.ndarray:
        """Return the values of the sampled tokens."""
        return batch.numpy()[self.row, self.column]


def by_trajectory(table: TurnTable, gap: int = 2) -> Padded:
    """Lay out a row per trajectory, with ``gap`` observation tokens between turns, padded at the end."""
    turn = token_rows(table)
    trajectory = table.trajectory[turn]
    starts = np.flatnonzero(np.append(True, trajectory[1:] != trajectory[:-1]))
    number = np.arange(len(turn)) - np.repeat(starts, np.diff(np.append(starts, len(turn))))
    column = number + gap * table.turn[turn]
    mask = np.zeros((int(trajectory.max()) + 1, int(column.max()) + 3))
    mask[trajectory, column] = 1.0
    return Padded(trajectory, column, torch.as_tensor(mask))


def by_turn(table: TurnTable) -> Padded:
    """Lay out a row per turn, padded at the end."""
    assert table.num_tokens is not None
    turn = token_rows(table)
    column = np.arange(len(turn)) - (np.cumsum(table.num_tokens) - table.num_tokens)[turn]
    mask = np.zeros((len(table), int(column.max()) + 2))
    mask[turn, column] = 1.0
    return Padded(turn, column, torch.as_tensor(mask))


def on_last_tokens(table: TurnTable, value: np.ndarray) -> np.ndarray:
    """Return a value per turn on the turn's last token, 0 on the others, shape ``[M]``."""
    assert table.num_tokens is not None
    tokens = np.zeros(int(table.num_tokens.sum()))
    tokens[np.cumsum(table.num_tokens) - 1] = value
    return tokens


def to_tokens(table: TurnTable, value: np.ndarray) -> np.ndarray:
    """Return each token's turn's value, shape ``[M]``."""
    return value[token_rows(table)]


def batch_of(batch: dict[str, Any], **other: Any) -> SimpleNamespace:
    """Return a fake of verl's ``DataProto``."""
    return SimpleNamespace(batch=batch, non_tensor_batch=other)
