"""Storage of the scores that an update computes for every trained token: log-probabilities and entropies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from agentgym.rollout.token_scores import Key, TurnScores
from agentgym.trainers.data.batch import TrainBatch
from agentgym.trainers.data.samples import FilteredGroup, TrainingSample

TurnRef = tuple[int, int]
"""Ordinal of a group, and index of an episode among its trajectories."""


def places_of(verdicts: Iterable[FilteredGroup]) -> list[TurnRef]:
    """Return the place of each trajectory of the training rows, by its number in ``TrainingSample.trajectory``."""
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
        samples: Mapping[int, TrainingSample],
        places: Sequence[TurnRef],
        batch: TrainBatch,
        entropy: Tensor,
        logprob: Tensor | None,
    ) -> None:
        """Add a micro-batch.

        Args:
            samples: the rows by the indices in ``batch.samples``.
            places: the result of :func:`places_of`.
            entropy: ``[N]`` entropies.
            logprob: ``[N]`` log-probabilities under the policy before the step; None if only a later policy was scored.
        """
        counts = torch.bincount(batch.row, minlength=len(batch.samples)).tolist()
        entropies = torch.split(entropy.cpu(), counts)
        logprobs = torch.split(logprob.cpu(), counts) if logprob is not None else (None,) * len(counts)
        for index, of_entropy, of_logprob in zip(batch.samples, entropies, logprobs, strict=True):
            sample = samples[index]
            columns = [_over_row(sample, of_entropy), _over_row(sample, of_logprob)]
            for turn in np.unique(sample.turns[sample.turns >= 0]).tolist():
                key = (*places[sample.trajectory], turn)
                own = sample.turns == turn
                self._found[key] = TurnScores(
                    ordinal=key[0], member=key[1], turn=turn,
                    entropies=_rounded(columns[0][own]), logprobs=_rounded(columns[1][own]),
                )  # fmt: skip

    def collected(self) -> list[TurnScores]:
        """Return the scores of all turns that have scores, in order."""
        return [self._found[key] for key in sorted(self._found)]


def _over_row(sample: TrainingSample, values: Tensor | None) -> np.ndarray:
    """Return values of a row's trained tokens at their positions, NaN elsewhere."""
    row = np.full(len(sample.token_ids), np.nan)
    if values is not None:
        row[sample.loss_mask] = values.float().numpy()
    return row


def _rounded(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist())
