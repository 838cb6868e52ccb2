"""The tool ``bash``: run a shell line inside the sandbox."""

from __future__ import annotations

from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.tools.in_sandbox import InSandbox


class BashTool(InSandbox):
    """``bash``: each call runs in a new shell in the workspace; processes that it leaves running are killed."""

    @tool
    def bash(self, command: str) -> str:
        """Run a shell command in the workspace; shows its output and its exit code unless that is 0.

        Args:
            command: the command line.
        """
        if "\0" in command:
            raise ToolError("a command cannot hold a NUL character", "invalid_arguments")
        return self.said_by(self.sandbox.exec(command, timeout_s=self.call_timeout_s()))
