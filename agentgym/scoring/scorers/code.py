"""A scorer of code: tests run on it, in a sandbox."""

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
    """Key of the task's data under which the tests are: Python, classes of ``unittest`` or functions ``test_...``."""
    module: str = "solution"
    """What the tests import the answer as."""
    share: bool = False
    """Give the share of the tests that pass, rather than 1.0 if all do."""
    sandbox: Literal["auto", "docker", "namespaces", "process"] = "auto"

    def check_together(self) -> None:
        self.check(is_ok=self.module.isidentifier(), message=f"module is a name of Python, got {self.module!r}")


SCORERS.add(
    Component(name="code", family="scorer", function="agentgym.envs.code.scorer:passes_tests", options=CodeOptions)
)
