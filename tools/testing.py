"""The tool ``run_tests``: the tests that the agent may see, inside its own sandbox."""

from __future__ import annotations

from agentgym.tool import tool
from agentgym.tools.in_sandbox import InSandbox


class RunTestsTool(InSandbox):
    """``run_tests``: a fixed command. What it shows is for the agent; no reward may rest on it."""

    test_command: str
    """Handed in, as the sandbox is."""

    @tool
    def run_tests(self) -> str:
        """Run the visible tests on the files as they are now."""
        return self.said_by(self.sandbox.exec(self.test_command, timeout_s=self.call_timeout_s()))
