"""Conformance checks, fault injection and scripted policies, for users' own environments and tests, too."""

from agentgym.check.chaos import Chaos
from agentgym.check.conformance import check_env
from agentgym.check.policies import ScriptedEngine, noop_action, random_action
from agentgym.check.report import CheckReport, CheckResult
from agentgym.check.sandbox.conformance import check_sandbox

__all__ = [
    "Chaos",
    "CheckReport",
    "CheckResult",
    "ScriptedEngine",
    "check_env",
    "check_sandbox",
    "noop_action",
    "random_action",
]
