"""Stop texts of a request: where they end a completion."""

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
    """The sampled tokens up to and with the one that completed the stop text."""
    text: str
    """What the completion says before the stop text, thinking included."""
    stop: str


def stopped(
    completion: Completion, stops: Sequence[str], renderer: ChatRenderer, *, is_open: bool | None = None
) -> Stopped | None:
    """Return a completion as it ends at the stop text that is complete first; None if there is none in it.

    Tokens are sampled one after the other, so the tokens up to there and their log-probabilities are those of an engine
    that stops at that token. Stop texts inside thinking do not count: agents do not see it.

    Args:
        is_open: the prompt opened the thinking.
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
