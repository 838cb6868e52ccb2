"""The tool ``python``: an interpreter inside the sandbox, with or without a persistent session."""

from __future__ import annotations

import functools
import importlib.resources

from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.tools.in_sandbox import InSandbox

SESSION_FILE = ".python_session"
"""File in the workspace that stores a session of :class:`PythonTool`; see :mod:`agentgym.tools.inside.cell`."""

_INSIDE = "agentgym.tools.inside"


class _Interpreter(InSandbox):
    def run_cell(self, code: str, session_file: str) -> str:
        """Run Python code. Return its output, the value of a last expression, or its traceback.

        Raises:
            ToolError: of type ``timeout``, ``out_of_memory`` or ``crashed``, if the interpreter did not finish.
        """
        program = (
            f"{program_of(_INSIDE, 'session', 'changes', 'cell')}sys.exit(module.run_cell({code!r}, {session_file!r}))"
        )
        result = self.sandbox.run_python(program, timeout_s=self.call_timeout_s())
        said = self.said_by(result)
        if result.exit_code < 0:
            raise ToolError(f"the interpreter crashed; variables are as they were before this call\n{said}", "crashed")
        return said.removesuffix("\n[exit code 1]") if result.stderr else said  # the traceback reports the exit code 1


class PythonTool(_Interpreter):
    """``python`` with a session: variables, functions and imports persist between calls.

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
    """``python`` without a session: each call starts a new interpreter."""

    @tool
    def python(self, code: str) -> str:
        """Run Python code in a new interpreter; the value of a last expression is shown.

        Args:
            code: Python code.
        """
        return self.run_cell(code, "")


# -------------------- modules of this package as one Python text, which runs where the package is not installed

_BOOT = """import sys
path = sys.path[:]
sys.path[:] = [folder for folder in path if folder]
import types
for name, text in {sources!r}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
sys.path[:] = path
"""


@functools.cache
def program_of(package: str, *names: str) -> str:
    """Return Python text that creates the modules ``package.name`` in order and binds the last one to ``module``.

    Their imports never come from the working directory, which may hold untrusted files.

    Example:
        >>> text = program_of("agentgym.tools.inside", "cell")
        >>> exec(text + "print(module.__name__)")
        agentgym.tools.inside.cell
    """
    folder = importlib.resources.files(package)
    sources = [(f"{package}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8")) for name in names]
    return _BOOT.format(sources=sources)
