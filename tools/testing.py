"""The tool ``run_tests``: run the visible tests in the agent's sandbox."""

from __future__ import annotations

from agentgym.tool import tool
from agentgym.tools.in_sandbox import InSandbox


class RunTestsTool(InSandbox):
    """``run_tests``: run a fixed command. Its output is for the agent; no reward may depend on it."""

    test_command: str
    """Command that runs the visible tests, which the environment sets."""

    @tool
    def run_tests(self) -> str:
        """Run the visible tests on the files as they are now."""
        return self.said_by(self.sandbox.exec(self.test_command, timeout_s=self.call_timeout_s()))
