"""Batches of the warm start by position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.data.row import Row

BATCHES_PER_WINDOW = 32


def num_sft_steps(config: SftConfig, num_rows: int) -> int:
    """Return the number of optimizer steps of the phase; only complete batches count."""
    return config.num_epochs * (num_rows // config.batch_size)


class SftBatches:
    """The batches of all epochs by position; each epoch has its own random order.

    Args:
        batch_size: rows per batch; an epoch leaves out rows that do not fill a batch.
        seed: seed of the orders of all epochs.
    """

    def __init__(self, rows: Sequence[Row], batch_size: int, seed: int, label: str = "sft") -> None:
        self._rows = rows
        self._per_epoch = len(rows) // batch_size
        self._epoch = lru_cache(maxsize=1)(
            lambda epoch: _epoch_batches(rows, batch_size, derive_seed(seed, label, epoch))
        )

    def __getitem__(self, position: int) -> list[Row]:
        return [self._rows[index] for index in self.indices(position)]

    def indices(self, position: int) -> list[int]:
        """Return the indices of the rows of the batch at a position."""
        epoch, at = divmod(position, self._per_epoch)
        return self._epoch(epoch)[at]


def _epoch_batches(rows: Sequence[Row], batch_size: int, seed: int) -> list[list[int]]:
    """Return an epoch's batches in random order, each with rows of similar length, because padding costs time."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows)).tolist()
    window = batch_size * BATCHES_PER_WINDOW
    by_length = [
        index
        for start in range(0, len(order), window)
        for index in sorted(order[start : start + window], key=lambda i: len(rows[i].token_ids))
    ]
    batches = [by_length[start : start + batch_size] for start in range(0, len(order) - batch_size + 1, batch_size)]
    return [batches[int(i)] for i in rng.permutation(len(batches))]
