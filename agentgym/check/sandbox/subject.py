"""Subjects of the checks of a sandbox, and the words they fail with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentgym.check.report import CheckFailed
from agentgym.errors import SandboxFileError
from agentgym.sandbox import ExecResult, Limits, Sandbox

SandboxFactory = Callable[[Limits], Sandbox]
NOT_CLAIMED = "not applicable: {} is not claimed here"


@dataclass(frozen=True, slots=True)
class SandboxSubject:
    """A kind of sandbox under check: one that is open and as new, and how to open others."""

    sandbox: Sandbox
    factory: SandboxFactory

    def claims(self, name: str) -> bool:
        """True if the guarantee is said to be in force."""
        return name in self.sandbox.capabilities().in_force

    def other(self, **limits: Any) -> contextlib.closing[Sandbox]:
        """Open one more sandbox, with other limits, for a ``with`` statement."""
        return contextlib.closing(self.factory(Limits(**limits)))


def expect(what: str, found: object, expected: object) -> None:
    """Fail unless they are equal."""
    if found != expected:
        raise CheckFailed(f"{what}: got {found!r}, expected {expected!r}")


def demand(is_so: bool, otherwise: str) -> None:
    """Fail with ``otherwise`` unless ``is_so``."""
    if not is_so:
        raise CheckFailed(otherwise)


def done(result: ExecResult) -> ExecResult:
    """The result of something that is to end well."""
    if not result.ok:
        raise CheckFailed(f"exit code {result.exit_code}, limit {result.limit!r}: {result.stderr[-300:]}")
    return result


def refused(action: Callable[[], object], what: str, *kinds: str) -> None:
    """Fail unless ``action`` raises a SandboxFileError, of one of ``kinds`` if there are any."""
    try:
        found = action()
    except SandboxFileError as error:
        if kinds and error.error_type not in kinds:
            raise CheckFailed(f"{what}: refused as {error.error_type!r}, expected {' or '.join(kinds)}") from error
        return
    raise CheckFailed(f"{what}: was not refused but gave {str(found)[:200]!r}")
