"""Storage of the scores that an update computes for every trained token: log-probabilities and entropies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from agentgym.rollout.token_scores import Key, TurnScores
from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.samples import FilteredGroup

TurnRef = tuple[int, int]
"""Ordinal of a group, and index of an episode among its trajectories."""


def places_of(verdicts: Iterable[FilteredGroup]) -> list[TurnRef]:
    """Return the place of each trajectory of the training rows, by its number in ``Row.trajectory``."""
    return [
        (verdict.group.ordinal, at)
        for verdict in verdicts
        if verdict.dropped is None
        for at, trajectory in enumerate(verdict.group.trajectories)
        if trajectory.status.is_evidence
    ]


class TokenScores:
    """A collection of the scores of a step's tokens, each from the first pass that trains it."""

    def __init__(self) -> None:
        self._found: dict[Key, TurnScores] = {}

    def add(
        self,
        rows: Mapping[int, Row],
        places: Sequence[TurnRef],
        batch: Batch,
        entropy: Tensor,
        logprob: Tensor | None,
    ) -> None:
        """Add a micro-batch.

        Args:
            rows: the rows by the indices in ``batch.rows``.
            places: the result of :func:`places_of`.
            entropy: ``[N]`` entropies.
            logprob: ``[N]`` log-probabilities under the policy before the step; None if only a later policy was scored.
        """
        entropies = batch.split(entropy.cpu())
        logprobs = batch.split(logprob.cpu()) if logprob is not None else (None,) * len(entropies)
        for index, of_entropy, of_logprob in zip(batch.rows, entropies, logprobs, strict=True):
            row = rows[index]
            columns = [_over_sampled(row, of_entropy), _over_sampled(row, of_logprob)]
            for turn in np.unique(row.columns["turn_index"]).tolist():
                key = (*places[row.trajectory], turn)
                own = row.columns["turn_index"] == turn
                self._found[key] = TurnScores(
                    ordinal=key[0], member=key[1], turn=turn,
                    entropies=_rounded(columns[0][own]), logprobs=_rounded(columns[1][own]),
                )  # fmt: skip

    def collected(self) -> list[TurnScores]:
        """Return the scores of all turns that have scores, in order."""
        return [self._found[key] for key in sorted(self._found)]


def _over_sampled(row: Row, values: Tensor | None) -> np.ndarray:
    """Return values of a row's trained tokens over all its sampled tokens, NaN elsewhere."""
    column = np.full(len(row.positions), np.nan)
    if values is not None:
        column[row.in_batch] = values.float().numpy()
    return column


def _rounded(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist())
