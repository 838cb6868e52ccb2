"""Reports of the tokens that requests and attempts use, whether or not their episodes count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentgym.types import Usage

Hear = Callable[[str, str, Usage | None], None]
"""A function of a server's address, the model's name there, and the token counts; None if the server reports none."""
_LISTENER: ContextVar[Hear | None] = ContextVar("listener of spending", default=None)


@contextmanager
def heard_by(hear: Hear) -> Iterator[None]:
    """Report the requests of the ``with`` block, and of the tasks that begin in it, to a function."""
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
