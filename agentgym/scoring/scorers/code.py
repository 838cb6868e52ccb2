"""A scorer that runs tests on code in a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.plugins import Component, Options
from agentgym.scoring.component import SCORERS


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOptions(Options):
    """Settings of the scorer ``code``."""

    kind: str = "code"
    tests: str = "tests"
    """Key of the task's data that holds the tests: Python code with ``unittest`` classes or functions ``test_...``."""
    module: str = "solution"
    """Module name under which the tests import the answer."""
    share: bool = False
    """Return the share of passed tests instead of 1.0 if all pass."""
    sandbox: Literal["auto", "docker", "namespaces", "process"] = "auto"

    def check_together(self) -> None:
        self.check(is_ok=self.module.isidentifier(), message=f"module is a name of Python, got {self.module!r}")


SCORERS.add(
    Component(name="code", family="scorer", function="agentgym.envs.code.scorer:passes_tests", options=CodeOptions)
)
