"""Stop texts: find where they end a completion."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym.render.chat import ChatRenderer
from agentgym.types import Completion, FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A completion that a stop text ended."""

    completion: Completion
    """Sampled tokens up to and including the one that completed the stop text."""
    text: str
    """Text before the stop text, thinking included."""
    stop: str


def stopped(
    completion: Completion, stops: Sequence[str], renderer: ChatRenderer, *, is_open: bool | None = None
) -> Stopped | None:
    """Return a completion shortened at the first stop text in it, or None if it contains none.

    Tokens are sampled one after the other, so the remaining tokens and log-probabilities equal those of an engine that
    stops there. Stop texts inside thinking do not count, since agents do not see the thinking.

    Args:
        is_open: True if the prompt opened the thinking.
    """
    ids = completion.token_ids
    text = renderer.text_of(ids)
    if not any(stop in text for stop in stops):
        return None
    num_thinking = renderer.num_thinking_tokens(ids, is_open=is_open)
    first = len(renderer.text_of(ids[:num_thinking])) if num_thinking else 0
    found = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop, first)) >= 0]
    if not found:
        return None
    end, start, stop = min(found)
    num_tokens = bisect_left(range(len(ids)), True, key=lambda num: renderer.text_of(ids[:num])[:end] == text[:end])
    cut = replace(
        completion,
        token_ids=ids[:num_tokens],
        logprobs=completion.logprobs[:num_tokens],
        policy_versions=completion.policy_versions[:num_tokens],
        finish_reason=FinishReason.STOP,
    )
    return Stopped(completion=cut, text=text[:start], stop=stop)
