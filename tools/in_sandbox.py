"""Base class of tools that run in a sandbox, and the text form of a sandbox's results."""

from __future__ import annotations

from agentgym.errors import ToolError
from agentgym.sandbox import ExecResult, Sandbox

SHOWN_WORKSPACE = "/workspace"
"""Name of the workspace in texts for the model. It does not depend on the real path, so that a task reads the same in
every sandbox."""

MAX_SHOWN_BYTES = 6 * 1024
"""Most bytes shown of stdout and of stderr each: beginning and end, with a note about the cut between them."""

_LIMITS = {
    "wall": ("timeout", "killed: still running after {timeout_s:g} s"),
    "cpu": ("timeout", "killed: out of processor time"),
    "memory": ("out_of_memory", "killed: out of memory"),
}
_TURN_OVER = "killed: the calls of this turn have used up its time"


class InSandbox:
    """Base class of tools that run in a sandbox: the sandbox and the time limit of a call."""

    sandbox: Sandbox
    """Sandbox, which the environment sets."""
    tool_timeout_s: float = 10.0

    def call_timeout_s(self) -> float:
        """Return the time limit of the next call in seconds; below ``tool_timeout_s`` if the turn's limit is close."""
        return self.tool_timeout_s

    def shown(self, text: str) -> str:
        """Return a text in which the workspace has its name for the model."""
        return text.replace(self.sandbox.workspace, SHOWN_WORKSPACE)

    def said_by(self, result: ExecResult) -> str:
        """Return a program's output and exit code as text for the model.

        Raises:
            ToolError: a limit ended the program (``timeout``, ``out_of_memory``); the message contains the output so
                far.
        """
        text = self.shown(output_text(result))
        if result.limit:
            error_type, words = _LIMITS[result.limit]
            is_early = result.limit == "wall" and result.wall_s < self.tool_timeout_s
            words = f"[{_TURN_OVER if is_early else words.format(timeout_s=self.tool_timeout_s)}]"
            raise ToolError(f"{text}\n{words}" if text else words, error_type)
        if result.exit_code:
            code = (
                f"[killed by signal {-result.exit_code}]" if result.exit_code < 0 else f"[exit code {result.exit_code}]"
            )
            text = f"{text}\n{code}" if text else code
        return text or "[no output]"


def output_text(result: ExecResult) -> str:
    """Return both outputs, each cut in its middle, with stderr under a heading.

    Example:
        >>> result = ExecResult(exit_code=1, stdout="42\\n", stderr="oops\\n", wall_s=0.1, cpu_s=0.1)
        >>> print(output_text(result))
        42
        [stderr]
        oops
    """
    pieces = [cut_middle(result.stdout.rstrip("\n"), more=result.stdout_cut)]
    if result.stderr.strip():
        pieces.append("[stderr]\n" + cut_middle(result.stderr.rstrip("\n"), more=result.stderr_cut))
    return "\n".join(piece for piece in pieces if piece)


def cut_middle(text: str, max_bytes: int = MAX_SHOWN_BYTES, *, more: bool = False) -> str:
    """Return the beginning and the end of a long text, with a note about the cut.

    Args:
        more: True if output after the text has been dropped.

    Example:
        >>> cut_middle("a" * 20 + "z" * 20, 10)
        'aaaaa\\n[30 bytes cut]\\nzzzzz'
    """
    raw = text.encode(errors="replace")
    if len(raw) > max_bytes:
        half = max_bytes // 2
        first, last = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
        text = f"{first}\n[{len(raw) - 2 * half} bytes cut]\n{last}"
    else:
        text = raw.decode()
    return f"{text}\n[more was written and dropped]" if more else text
