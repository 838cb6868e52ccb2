"""The sandbox under check, and functions that fail a check with a message."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentgym.canonical import packaged
from agentgym.check.report import CheckFailed
from agentgym.errors import SandboxFileError
from agentgym.sandbox import ExecResult, Limits, Sandbox

SandboxFactory = Callable[[Limits], Sandbox]
PROGRAMS: Final[Mapping[str, str]] = packaged(__package__, "programs.toml")
"""Programs that checks run in the sandbox, by name."""
NOT_CLAIMED = "not applicable: {} is not claimed here"


@dataclass(frozen=True, slots=True)
class SandboxSubject:
    """A kind of sandbox under check: an open one in its initial state, and the factory that opens others."""

    sandbox: Sandbox
    factory: SandboxFactory

    def claims(self, name: str) -> bool:
        """Return True if the sandbox claims the guarantee."""
        return name in self.sandbox.capabilities().in_force

    def other(self, **limits: Any) -> contextlib.closing[Sandbox]:
        """Open another sandbox with other limits, for use in a ``with`` statement."""
        return contextlib.closing(self.factory(Limits(**limits)))


def expect(what: str, found: object, expected: object) -> None:
    """Fail unless both values are equal."""
    if found != expected:
        raise CheckFailed(f"{what}: got {found!r}, expected {expected!r}")


def demand(is_so: bool, otherwise: str) -> None:
    """Fail with the message ``otherwise`` unless ``is_so``."""
    if not is_so:
        raise CheckFailed(otherwise)


def done(result: ExecResult) -> ExecResult:
    """Return the result of a program, and fail unless it succeeded."""
    if not result.ok:
        raise CheckFailed(f"exit code {result.exit_code}, limit {result.limit!r}: {result.stderr[-300:]}")
    return result


def refused(action: Callable[[], object], what: str, *kinds: str) -> None:
    """Fail unless ``action`` raises a SandboxFileError, of one of ``kinds`` if any are given."""
    try:
        found = action()
    except SandboxFileError as error:
        if kinds and error.error_type not in kinds:
            raise CheckFailed(f"{what}: refused as {error.error_type!r}, expected {' or '.join(kinds)}") from error
        return
    raise CheckFailed(f"{what}: was not refused but gave {str(found)[:200]!r}")
