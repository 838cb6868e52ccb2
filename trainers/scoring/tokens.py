"""Score existing tokens: their log-probabilities and entropies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentgym.credit.table import Floats
from agentgym.trainers.data.plan import of_similar_length
from agentgym.trainers.distributed.deal import Numbered, dealt
from agentgym.trainers.distributed.sharding import ranks_of, run_whole
from agentgym.trainers.models.head import frozen, head_of, trunk_of
from agentgym.trainers.models.head_logprobs import head_logprobs
from agentgym.trainers.scoring.hidden import ReadRow, hidden_states
from agentgym.trainers.types import CausalLM
from agentgym.types import Segment, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A row of tokens, and the target token for each hidden state that is read."""

    row: ReadRow
    targets: tuple[int, ...]

    @classmethod
    def about(cls, token_ids: Sequence[int], positions: Sequence[int]) -> ScoreRequest:
        """Return the question for the tokens at ``positions`` (at least 1), each given all tokens before it.

        Example:
            >>> ScoreRequest.about((5, 6, 7), (2,))
            ScoreRequest(row=ReadRow(token_ids=(5, 6, 7), at=(1,), spans=()), targets=(7,))
        """
        row = ReadRow(tuple(token_ids), tuple(at - 1 for at in positions))
        return cls(row, tuple(token_ids[at] for at in positions))


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The scores of one question, a number per target token."""

    logprobs: Floats
    """Natural-log probabilities."""
    entropies: Floats
    """Entropy of the distribution at each token, in nats."""


def segments_of(groups: Sequence[TrajectoryGroup]) -> list[Segment]:
    """Return the context windows of the valid members, in the order of the credit table."""
    return [segment for group in groups for trajectory in group.valid for segment in trajectory.segments]


def sampled_positions(segment: Segment) -> tuple[int, ...]:
    """Return the positions of the segment's sampled tokens, turn by turn."""
    return tuple(at for at, is_sampled in enumerate(segment.loss_mask) if is_sampled)


def score(
    model: CausalLM,
    questions: Sequence[ScoreRequest],
    *,
    temperature: float,
    tokens_per_microbatch: int,
) -> list[ScoredTokens]:
    """Score every question with the model's current weights at one temperature, in order and without gradients.

    Several ranks share the work evenly. All must call this, each with questions of its own or none.
    """
    ranks = ranks_of(model)
    numbers = Numbered.of(ranks, [question.row.num_tokens for question in questions])
    batches = of_similar_length(numbers.sizes, tokens_per_microbatch)
    own = numbers.of_rank(ranks.rank)
    asked = dealt(ranks, dict(zip(own, questions, strict=True)), batches)
    if not asked:
        return []

    def read(whole: CausalLM) -> list[list[ScoredTokens]]:
        return [_scored(whole, some, temperature) for some in asked]

    with frozen(model):
        made = run_whole(model, read)
    found: dict[int, ScoredTokens] = {}
    for (at, _), of_batch in zip(ranks.share(len(batches)), made, strict=True):
        found |= zip(batches[at], of_batch, strict=True)
    answers = ranks.fetched(found, [numbers.of_rank(rank) for rank in range(ranks.count)])
    return [answers[number] for number in own]


def _scored(model: CausalLM, questions: Sequence[ScoreRequest], temperature: float) -> list[ScoredTokens]:
    """Score questions in one forward pass."""
    targets = torch.tensor([token for question in questions for token in question.targets], dtype=torch.long)
    states = hidden_states(trunk_of(model), [question.row for question in questions])
    made = head_logprobs(head_of(model), states, targets.to(states.device), temperature)
    ends = np.cumsum([len(question.row.at) for question in questions])[:-1]
    logprobs, entropies = (np.split(values.float().cpu().numpy().astype(np.float64), ends) for values in made)
    return [ScoredTokens(*of_question) for of_question in zip(logprobs, entropies, strict=True)]
