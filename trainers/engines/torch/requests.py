"""The state of one call of ``generate``, and the counters of an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgym.engine import SamplingParams
from agentgym.errors import EngineError, error_text
from agentgym.trainers.engines.torch.slots import Slot
from agentgym.types import Completion, FinishReason


@dataclass(slots=True)
class EngineStats:
    """Counters of an engine since it was created."""

    num_ticks: int = 0
    num_prefill_tokens: int = 0
    """Number of prompt tokens that were computed."""
    num_reused_tokens: int = 0
    """Number of prompt tokens that were found in the cache."""
    num_sampled_tokens: int = 0
    num_evictions: int = 0
    """Number of idle sessions whose slot was given to another."""
    busy_s: float = 0.0
    """Wall seconds inside ticks: the share of a run in which the engine had work."""


@dataclass(slots=True, eq=False)
class Request:
    """One call of ``generate`` from the queue to its completion."""

    token_ids: list[int]
    """Token ids of the prompt and of the completion so far."""
    num_prompt: int
    max_new_tokens: int
    """Largest number of new tokens, also limited by the context."""
    sampling: SamplingParams
    session_id: str
    future: asyncio.Future[Completion]
    uniforms: list[float]
    slot: Slot | None = None
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)
    asked_s: float = field(default_factory=time.perf_counter)
    queued_s: float | None = None
    """Wall seconds until it had a slot."""

    def completion(self, reason: FinishReason) -> Completion:
        """The completion sampled so far."""
        return Completion(
            token_ids=tuple(self.token_ids[self.num_prompt :]),
            logprobs=tuple(self.logprobs),
            policy_versions=tuple(self.policy_versions),
            finish_reason=reason,
            queued_s=self.queued_s,
        )


def as_engine_error(error: Exception) -> EngineError:
    """Return a new error for each caller, because a shared one would collect the tracebacks of all."""
    if isinstance(error, EngineError):
        return EngineError(str(error))
    wrapped = EngineError(f"the forward failed: {error_text(error)}")
    wrapped.__cause__ = error
    return wrapped


def checked_ids(
    token_ids: Sequence[int], what: str, max_context_tokens: int, vocab_size: int, *, sees: bool = False
) -> list[int]:
    """Return token ids as a list after checking their number and range; those of images are negative.

    Raises:
        EngineError: there are none, more than the context holds, or one is outside the vocabulary.
    """
    ids = list(token_ids)
    if not ids:
        raise EngineError(f"the {what} is empty; the model needs at least one token to go on from")
    if len(ids) > max_context_tokens:
        raise EngineError(f"the {what} has {len(ids)} tokens, more than the context of {max_context_tokens} tokens")
    if max(ids) >= vocab_size or (min(ids) < 0 and not sees):
        images = "; negative ids are images, and this model reads text alone (docs/vision.md)" if min(ids) < 0 else ""
        raise EngineError(f"the {what} has a token id outside the vocabulary of 0 to {vocab_size - 1}{images}")
    return ids


def after_image(token_ids: Sequence[int], stop: int) -> int:
    """Return the end of a chunk, moved behind the image that it would cut: a model takes images whole.

    Example:
        >>> after_image([5, -9, -9, 7], 2), after_image([5, -9, -9, 7], 1)
        (3, 1)
    """
    while 0 < stop < len(token_ids) and token_ids[stop] < 0 and token_ids[stop] == token_ids[stop - 1]:
        stop += 1
    return stop
