"""Protection of the process's working directory, on which the relative paths of a run depend."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import ClassVar

from agentgym.errors import EnvError


class KeptDirectory:
    """A context manager that restores the process's working directory if the block inside leaves another.

    Blocks of several environments may overlap in one process. The directory at the start of the first block is then
    theirs, so the block that ends first after a change reports it.

    Args:
        owner: the environment's id, for the message.

    Raises:
        EnvError: the directory changed, also if the block itself failed, since that may be the cause.

    Example:
        >>> with KeptDirectory("Guess-v0"):
        ...     os.chdir("/")
        Traceback (most recent call last):
        agentgym.errors.EnvError: Guess-v0 changed the working directory of the process to /; use absolute paths ...
    """

    __slots__ = ("_owner",)
    _num_open: ClassVar[int] = 0
    _directory: ClassVar[str] = ""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def __enter__(self) -> None:
        kind = KeptDirectory
        if not kind._num_open:
            kind._directory = _directory()
        kind._num_open += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        of_all = KeptDirectory
        of_all._num_open -= 1
        now, before = _directory(), of_all._directory
        if now == before or not before:
            return
        with suppress(OSError):  # it has been removed
            os.chdir(before)
        if error is None or isinstance(error, Exception):  # a cancellation stays one
            raise EnvError(
                f"{self._owner} changed the working directory of the process to {now or 'a removed folder'}; "
                "use absolute paths, or subprocess's cwd=, in place of os.chdir()"
            ) from error


def _directory() -> str:
    """Return the working directory; empty if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""
