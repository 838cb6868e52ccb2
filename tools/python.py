"""The tool ``python``: an interpreter inside the sandbox, with or without a memory."""

from __future__ import annotations

from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.tools.in_sandbox import InSandbox
from agentgym.tools.program import program_of

SESSION_FILE = ".python_session"
"""In the workspace: what a session of :class:`PythonTool` knows, see :mod:`agentgym.tools.inside.cell`."""

_INSIDE = "agentgym.tools.inside"


class _Interpreter(InSandbox):
    def run_cell(self, code: str, session_file: str) -> str:
        """Run Python; gives what it printed, the value of a last expression, or its traceback.

        Raises:
            ToolError: ``timeout``, ``out_of_memory`` or ``crashed``: the interpreter was ended.
        """
        program = f"{program_of(_INSIDE, 'cell')}sys.exit(module.run_cell({code!r}, {session_file!r}))"
        result = self.sandbox.run_python(program, timeout_s=self.call_timeout_s())
        said = self.said_by(result)
        if result.exit_code < 0:
            raise ToolError(f"the interpreter crashed; variables are as they were before this call\n{said}", "crashed")
        return said.removesuffix("\n[exit code 1]") if result.stderr else said  # a traceback says it


class PythonTool(_Interpreter):
    """``python`` that remembers variables, functions and imports from call to call.

    Example:
        >>> from agentgym.sandboxes.process import ProcessSandbox
        >>> tools = PythonTool()
        >>> with ProcessSandbox() as tools.sandbox:
        ...     tools.python("x = 20"), tools.python("x + 1")
        ('[no output]', '21')
    """

    @tool
    def python(self, code: str) -> str:
        """Run Python code; variables stay for later calls, and the value of a last expression is shown.

        Args:
            code: Python code.
        """
        return self.run_cell(code, SESSION_FILE)


class PythonOnceTool(_Interpreter):
    """``python`` that begins anew with each call."""

    @tool
    def python(self, code: str) -> str:
        """Run Python code in a new interpreter; the value of a last expression is shown.

        Args:
            code: Python code.
        """
        return self.run_cell(code, "")
