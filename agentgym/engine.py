"""The engine contract: token ids in, sampled token ids out.

An engine samples completions for prompts given as token ids. It never sees text, messages or environments. Prompts with
the same ``session_id`` grow: each is the previous prompt, the tokens sampled for it, and new tokens. An engine may
therefore cache keys and values of a session, but must give the same result without the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from agentgym.errors import EngineError
from agentgym.settings import Count, Natural, NonNegative, PositiveFraction, Settings, check_ranges
from agentgym.types import Completion

ENDPOINT: Final = "openai:"
"""Beginning of the name of a model behind an endpoint, ``openai:URL?model=NAME``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(Settings):
    """Settings for sampling one completion.

    Example:
        >>> SamplingParams(max_new_tokens=16, stop_token_ids=(2,), seed=7).temperature
        1.0
    """

    max_new_tokens: Count = 64
    max_thinking_tokens: Natural = 0
    """Budget for a turn's thinking, in addition to ``max_new_tokens`` for the answer; 0 lets both share
    ``max_new_tokens``. An engine still gets a single limit per request."""
    temperature: NonNegative = 1.0
    """0 means greedy decoding; log-probabilities are then those of temperature 1."""
    top_p: PositiveFraction = 1.0
    top_k: Natural = 0
    """0 means no limit."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling stops after one of these tokens, which is part of the completion."""
    seed: int = 0
    """The same prompt, weights and seed give the same completion, whatever else is in the batch (up to rounding)."""

    @property
    def max_completion_tokens(self) -> int:
        """Most tokens of a completion: thinking and answer."""
        return self.max_new_tokens + self.max_thinking_tokens

    def __post_init__(self) -> None:
        check_ranges(self)


@runtime_checkable
class Engine(Protocol):
    """A sampler of one policy that serves many requests at a time."""

    @property
    def policy_version(self) -> int:
        """Version of the weights that the next token is sampled with."""
        ...

    @property
    def max_context_tokens(self) -> int:
        """Most tokens of prompt and completion together."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session_id: str = ""
    ) -> Completion:
        """Sample one completion.

        Args:
            prompt_ids: the whole prompt, shape ``[P]``.
            sampling: limits, temperature and seed.
            session_id: requests with the same id extend one another; empty for a request of its own.

        Raises:
            EngineError: the engine failed, which is an infrastructure failure.
        """
        ...

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each continuation token at temperature 1, teacher-forced, shape ``[C]``."""
        ...

    async def release(self, session_id: str) -> None:
        """Free the cache of a session that has ended; unknown ids are ignored."""
        ...

    async def update_weights(self, version: int) -> None:
        """Load the trainer's current weights as ``version`` and drop all caches of older weights."""
        ...

    async def close(self) -> None:
        """Free all resources; a second call does nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """An engine's load and health at one moment."""

    running: int
    """Requests that are being computed."""
    queued: int | None = None
    """Requests that wait in the queue; None if the engine does not know."""
    servers: int | None = None
    """Servers of the engine; None for an engine without servers."""
    ready: int | None = None
    """Servers among these that accept requests."""
    fault: str = ""
    """Fault of a server that gets no requests."""
    cache_use: float | None = None
    """Share of the key-value cache in use on the fullest server, 0 to 1. None, here and below, if the engine does not
    know."""
    preempted: int | None = None
    """Requests since the start that were evicted from the cache and recomputed."""
    prefix_tokens: int | None = None
    """Prompt tokens since the start."""
    prefix_hits: int | None = None
    """Prompt tokens among these that were found in the prefix cache."""


@runtime_checkable
class ReportsHealth(Protocol):
    """An engine that reports its load and health."""

    def health(self) -> EngineHealth:
        """Return the current load and health."""
        ...


MAX_LOGPROB = 1e-3
"""Largest log-probability of a token that an engine may report; rounding can leave a little above 0."""


def checked_completion(made: object) -> Completion:
    """Return the completion that an engine sampled, which a user's own engine may have made of anything.

    Raises:
        EngineError: it is no completion, has no token, or its log-probabilities are none.
    """
    if not isinstance(made, Completion):
        raise EngineError(f"the engine returned {type(made).__name__}, expected agentgym.types.Completion(...)")
    if not made.token_ids:
        raise EngineError("the engine sampled no token, expected one at least")
    if wrong := [value for value in made.logprobs if not -math.inf < value <= MAX_LOGPROB]:
        raise EngineError(f"the engine returned a log-probability of {wrong[0]:g}, expected finite numbers up to 0")
    return made
