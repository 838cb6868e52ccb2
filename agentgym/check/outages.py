"""Failures of the infrastructure while a check runs: what failed is played again, as in rollouts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from agentgym.errors import AgentGymError, HungError, InfrastructureError, RewardError, error_text

T = TypeVar("T")
_MOST_RETRIES = 2

OUTAGES: ContextVar[list[str] | None] = ContextVar("OUTAGES", default=None)
"""Errors of the running check after which something was played again; None outside a check."""


def retried(attempt: Callable[[], T]) -> T:
    """Return the result of a function, which is called again if the infrastructure fails.

    A failure is an :class:`~agentgym.errors.InfrastructureError` or an ``OSError``, such as a lost connection or a
    timeout. Hung environments and rewards that are not finite are faults, which are not tried again.
    """
    for _ in range(_MOST_RETRIES):
        try:
            return attempt()
        except (InfrastructureError, OSError) as error:
            _note(error)
    return attempt()


async def retried_async(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a coroutine function, as :func:`retried` does."""
    for _ in range(_MOST_RETRIES):
        try:
            return await attempt()
        except (InfrastructureError, OSError) as error:
            _note(error)
    return await attempt()


def _note(error: Exception) -> None:
    """Keep an error for the check's detail. One that is a fault is raised again."""
    if isinstance(error, HungError | RewardError):
        raise error
    found = OUTAGES.get()
    if found is not None:
        found.append(error_text(error))


def told_apart(attempt: Callable[[], T]) -> T:
    """Return the result of :func:`retried`. An error of the user's code that does not happen again says so."""
    try:
        return retried(attempt)
    except (AgentGymError, OSError):
        raise
    except Exception as error:
        try:
            attempt()
        except Exception:
            raise error from None
        error.add_note(
            "not when the same was played again: it depends on a service, the clock or earlier episodes; raise "
            "EnvError where a service fails"
        )
        raise


def with_outages(detail: str, outages: list[str]) -> str:
    """Return a check's detail with a warning about the failures after which it has passed."""
    if not outages:
        return detail
    times = "once" if len(outages) == 1 else f"{len(outages)} times"
    return (
        f"warning: {detail.removeprefix('warning: ')}; the infrastructure failed {times} and worked when played again, "
        f"last: {outages[-1]}"
    )
