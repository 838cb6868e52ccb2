"""The engine contract: token ids in, sampled token ids out.

An engine samples completions for prompts given as token ids. It never sees text, messages or environments. Prompts of
one ``session_id`` grow: each is the previous prompt, the tokens sampled for it, and something new, so that an engine
may keep what it computed. An engine must give the same result without that memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentgym.settings import Count, Natural, NonNegative, PositiveFraction, check_ranges
from agentgym.types import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Settings for sampling one completion.

    Example:
        >>> SamplingParams(max_new_tokens=16, stop_token_ids=(2,), seed=7).temperature
        1.0
    """

    max_new_tokens: Count = 64
    max_thinking_tokens: Natural = 0
    """Budget of a rollout's thinking, beside ``max_new_tokens`` for the answer; 0 lets both share ``max_new_tokens``.
    Engines are given one limit for each request."""
    temperature: NonNegative = 1.0
    """0 means greedy; log-probabilities are then those of the unscaled distribution."""
    top_p: PositiveFraction = 1.0
    top_k: Natural = 0
    """0 means no limit."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling stops after one of these; it is part of the completion."""
    seed: int = 0
    """The same prompt, weights and seed give the same completion, whatever else is in the batch (up to rounding)."""

    @property
    def max_completion_tokens(self) -> int:
        """The longest completion: thinking and answer."""
        return self.max_new_tokens + self.max_thinking_tokens

    def __post_init__(self) -> None:
        check_ranges(self)


@runtime_checkable
class Engine(Protocol):
    """Samples from one policy, many requests at a time."""

    @property
    def policy_version(self) -> int:
        """Version of the weights that the next token is sampled from."""
        ...

    @property
    def max_context_tokens(self) -> int:
        """Longest prompt plus completion the engine can hold."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session_id: str = ""
    ) -> Completion:
        """Sample one completion. Raises :class:`~agentgym.errors.EngineError` on failure."""
        ...

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probability (temperature 1) of each continuation token, teacher-forced."""
        ...

    async def release(self, session_id: str) -> None:
        """Forget what is kept for a session that has ended; unknown ids are ignored."""
        ...

    async def update_weights(self, version: int) -> None:
        """Take the trainer's current weights as ``version``; what was kept from older weights is dropped."""
        ...

    async def close(self) -> None:
        """Free everything; a second call does nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """An engine's work at one moment."""

    running: int
    """Requests that it computes."""
    queued: int | None = None
    """Requests that wait for a place; None where it does not know."""
    servers: int | None = None
    """Servers that it has; None for an engine without servers."""
    ready: int | None = None
    """Servers of these that can be asked."""
    fault: str = ""
    """What is wrong with a server that is left out."""
    cache_use: float | None = None
    """Share of the key-value cache in use, of the fullest server. None, here and below, where it does not know."""
    preempted: int | None = None
    """Requests since the start that lost their place in the cache and were computed anew."""
    prefix_tokens: int | None = None
    """Prompt tokens since the start."""
    prefix_hits: int | None = None
    """Of these, tokens that the cache had."""


@runtime_checkable
class ReportsHealth(Protocol):
    """An engine that tells what it does."""

    def health(self) -> EngineHealth:
        """Return the state now."""
        ...
