"""Reports of the tokens that requests and attempts use, whether or not their episodes count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from agentgym.canonical import is_whole
from agentgym.types import Usage

Hear = Callable[[str, str, Usage | None], None]
"""A function of a server's address, the model's name there, and the token counts; None if the server reports none."""
_LISTENER: ContextVar[Hear | None] = ContextVar("listener of spending", default=None)


def listener() -> Hear | None:
    """Return the function that hears of the requests made here, to be passed on to another thread."""
    return _LISTENER.get()


@contextmanager
def heard_by(hear: Hear | None) -> Iterator[None]:
    """Report the requests of the ``with`` block, and of the tasks that begin in it, to a function; to none if None."""
    token = _LISTENER.set(hear)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def report(url: str, model: str, usage: Usage | None) -> None:
    """Report a completion that a server answered, even if the answer is of no use."""
    hear = _LISTENER.get()
    if hear is not None:
        hear(url, model, usage)


def report_answer(url: str, model: str, answer: object) -> None:
    """Report the tokens of an endpoint's decoded answer."""
    report(url, model, usage_of(answer))


def report_unanswered(url: str, model: str) -> None:
    """Report a request that was sent and got no answer: the server may bill it, and nobody knows how much."""
    report(url, model, None)


def usage_of(answer: object) -> Usage | None:
    """Return the token counts of an answer; None if it has none, or counts that cannot be."""
    usage = answer.get("usage") if isinstance(answer, Mapping) else None
    if not isinstance(usage, Mapping):
        return None
    read, sampled = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not is_whole(read) or not is_whole(sampled):
        return None
    details = usage.get("prompt_tokens_details")
    told = details.get("cached_tokens") if isinstance(details, Mapping) else None
    cached = told if is_whole(told) else None
    # counts that contradict each other are none: a cost made from them could be negative
    # no prompt is empty: some gateways write zeros where they do not count
    is_sound = read > 0 and sampled >= 0 and 0 <= (cached or 0) <= read
    return Usage(read, sampled, cached) if is_sound else None
