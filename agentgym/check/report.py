"""The result of a conformance check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from agentgym.check.outages import OUTAGES, retried, with_outages
from agentgym.env.time_limit import time_limit
from agentgym.error_places import place_of
from agentgym.errors import HungError, contained_exit, error_text

S = TypeVar("S")


class CheckFailed(Exception):
    """An error raised inside a check if the environment breaks the contract; the message says what it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The outcome of one check.

    Example:
        >>> CheckResult(name="oracle", passed=True, detail="5 of 5 episodes succeed").passed
        True
    """

    name: str
    passed: bool
    """True also if the check does not apply or is blocked; ``detail`` then says why."""
    detail: str
    is_blocked: bool = False
    """True if a check that this one depends on failed, and this one did not run or failed, too."""
    is_hung: bool = False
    """True if the check exceeded its time limit."""


def blocked(name: str, detail: str) -> CheckResult:
    """Return the result of a check that is blocked by the failure of a check that it depends on."""
    return CheckResult(name=name, passed=True, detail=detail, is_blocked=True)


def run_check(name: str, function: Callable[[S], str], subject: S, timeout_s: float | None = None) -> CheckResult:
    """Run one check. Any exception, or a run longer than ``timeout_s`` seconds, is a failure.

    If the infrastructure fails, the check is tried again. One that passes then has a warning.
    """
    outages: list[str] = []
    token = OUTAGES.set(outages)
    try:
        with contained_exit(), time_limit(timeout_s, "the check"):
            detail = retried(lambda: function(subject))
        return CheckResult(name=name, passed=True, detail=with_outages(detail, outages))
    except CheckFailed as failure:
        return CheckResult(name=name, passed=False, detail=str(failure))
    except HungError as error:
        return CheckResult(name=name, passed=False, detail=str(error), is_hung=True)
    except Exception as error:
        return CheckResult(name=name, passed=False, detail=_told(error))
    finally:
        OUTAGES.reset(token)


def _told(error: Exception) -> str:
    """Return an unexpected error with the line of the user's file and the notes that were added to it."""
    told = f"{error_text(error)}{place_of(error, or_ours=False)}"
    return ", ".join([told, *getattr(error, "__notes__", ())])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The results of all checks of one environment.

    Example:
        >>> result = CheckResult(name="oracle", passed=False, detail="3 of 5 episodes succeed")
        >>> print(CheckReport(env="Guess-v0", passed=False, checks=(result, blocked("speed", "not run: ..."))))
        Guess-v0: 1 of 2 checks failed, 1 depends on it and gives no result
          FAIL  oracle  3 of 5 episodes succeed
          -     speed   not run: ...
    """

    env: str
    passed: bool
    checks: tuple[CheckResult, ...]

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def verdict(self) -> str:
        """Line with the number of failed checks and of checks that depend on them."""
        num_blocked = sum(check.is_blocked for check in self.checks)
        num_failed = len(self.failures)
        if not num_failed:
            return "all checks passed"
        said = f"{num_failed} of {len(self.checks)} checks failed"
        if not num_blocked:
            return said
        cause = "it" if num_failed == 1 else "them"
        if num_blocked == 1:
            return f"{said}, 1 depends on {cause} and gives no result"
        return f"{said}, {num_blocked} depend on {cause} and give no result"

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        rows = [f"  {_mark(c):<4}  {c.name:<{width}}  {c.detail}" for c in self.checks]
        return "\n".join([f"{self.env}: {self.verdict}", *rows])


def _mark(check: CheckResult) -> str:
    if check.is_blocked:
        return "-"
    return "ok" if check.passed else "FAIL"
