"""Arguments that clients of a server without a token may choose.

A text can be a path, an address, an image or the name of a sandbox, and no name of an argument says which. So these
clients choose numbers and flags alone, and tasks that the server has given out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from agentgym.remote import wire
from agentgym.remote.wire import ForbiddenError
from agentgym.types import Task

MAX_REMEMBERED: Final = 1_000_000
"""Most tasks that are remembered; the oldest are forgotten, and clients fetch them again."""


class UntrustedClients:
    """Checks the requests of clients that have no token."""

    def __init__(self) -> None:
        self._given_out: dict[str, None] = {}

    def remember(self, tasks: Iterable[Task]) -> None:
        """Remember tasks that the server gives out."""
        for task in tasks:
            self._given_out[task.content_hash] = None
            if len(self._given_out) > MAX_REMEMBERED:
                del self._given_out[next(iter(self._given_out))]

    def check(self, request: Mapping[str, Any]) -> None:
        """Check a request.

        Raises:
            ForbiddenError: it has an argument that may choose a path, an address or a sandbox, or a task of its own.
        """
        for key in ("kwargs", "options"):
            if isinstance(given := request.get(key), Mapping):
                _check_numbers(given)
        task = request.get("task")
        if isinstance(task, Mapping) and wire.read(Task, task).content_hash not in self._given_out:
            raise ForbiddenError(
                "this server has no token, so clients play only tasks that it has given out since its start; fetch its "
                "tasks, or start it without --no-token"
            )


def _check_numbers(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if not _is_number(value):
            raise ForbiddenError(
                f"this server has no token, so clients choose numbers and flags alone, and not {str(name)[:40]!r}; "
                "start it without --no-token to choose texts, such as paths and sandboxes"
            )


def _is_number(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_number(one) for one in value)
    return value is None or isinstance(value, bool | int | float)
