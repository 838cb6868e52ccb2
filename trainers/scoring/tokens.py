"""Score existing tokens: their log-probabilities and entropies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.credit.table import Floats
from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.spread import RankBatches, RankRows
from agentgym.trainers.distributed.sharding import ranks_of, run_whole
from agentgym.trainers.models.head import frozen, head_of, trunk_of
from agentgym.trainers.models.head_logprobs import head_logprobs
from agentgym.trainers.types import CausalLM
from agentgym.types import Segment, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The scores of one row, a number for each token that is read."""

    logprobs: Floats
    """Natural-log probabilities."""
    entropies: Floats
    """Entropy of the distribution at each token, in nats."""


def segments_of(groups: Sequence[TrajectoryGroup]) -> list[Segment]:
    """Return the context windows of the valid members, in the order of the credit table."""
    return [segment for group in groups for trajectory in group.valid for segment in trajectory.segments]


def sampled_row(segment: Segment) -> Row:
    """Return the row that reads a segment's sampled tokens, turn by turn."""
    return Row(token_ids=segment.token_ids, positions=np.flatnonzero(segment.loss_mask))


def score(
    model: CausalLM,
    rows: Sequence[Row],
    *,
    temperature: float,
    tokens_per_microbatch: int,
) -> list[ScoredTokens]:
    """Score the read tokens of every row with the model's current weights at one temperature, without gradients.

    Several ranks share the work evenly. All must call this, each with rows of its own or none.
    """
    ranks, device = ranks_of(model), next(model.parameters()).device
    every = RankRows.of(rows, ranks, is_spread=True)
    work = RankBatches.read(every, ranks, device, tokens_per_microbatch=tokens_per_microbatch)
    if not work.share:
        return []

    def read(whole: CausalLM) -> list[list[ScoredTokens]]:
        return [_scored(whole, work.batches[index], temperature) for index, _ in work.share]

    with frozen(model):
        made = run_whole(model, read)
    found: dict[int, ScoredTokens] = {}
    for (index, _), of_batch in zip(work.share, made, strict=True):
        found |= zip(work.plan.batches[index].rows, of_batch, strict=True)
    scores = ranks.fetched(found, every.of_ranks)
    return [scores[index] for index in every.of_ranks[ranks.rank]]


def score_by_role(
    models: Mapping[str, CausalLM],
    rows: Sequence[tuple[str, Row]],
    *,
    temperature: float,
    tokens_per_microbatch: int,
) -> list[ScoredTokens]:
    """Score rows as :func:`score` does, each by the model of the role that sampled it.

    Args:
        models: the trained models by role; that of the policy is under ``""``. They are in one order on all ranks.
        rows: the rows with their roles (:attr:`Segment.role`).

    Raises:
        KeyError: a row's role has no model.
    """
    found: dict[int, ScoredTokens] = {}
    for role, model in models.items():
        own = {at: row for at, (of, row) in enumerate(rows) if of == role}
        made = score(model, list(own.values()), temperature=temperature, tokens_per_microbatch=tokens_per_microbatch)
        found |= zip(own, made, strict=True)
    return [found[at] for at in range(len(rows))]


def _scored(model: CausalLM, batch: Batch, temperature: float) -> list[ScoredTokens]:
    """Score the rows of a micro-batch in one forward pass."""
    made = head_logprobs(head_of(model), batch.states(trunk_of(model)), batch.target, temperature)
    logprobs, entropies = (batch.split(values.float().cpu()) for values in made)
    return [
        ScoredTokens(*(values.numpy().astype(np.float64) for values in of_row))
        for of_row in zip(logprobs, entropies, strict=True)
    ]
