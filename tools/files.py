"""The tools ``read_file``, ``write_file`` and ``edit_file``, on files of the sandbox's workspace."""

from __future__ import annotations

import re

from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.tools.in_sandbox import InSandbox

MAX_LINES = 500
"""Most lines that one call of ``read_file`` shows."""


class ReadFileTool(InSandbox):
    """``read_file``: read a file or a range of its lines."""

    @tool
    def read_file(self, path: str, first_line: int = 1, num_lines: int = MAX_LINES) -> str:
        """Show a text file, each line with its number.

        Args:
            path: the file, relative to the workspace.
            first_line: the first line to show, counted from 1.
            num_lines: how many lines to show.
        """
        if first_line < 1 or num_lines < 1:
            raise ToolError("first_line and num_lines are at least 1", "invalid_arguments")
        lines = lines_of(read_text(self, path))
        if first_line > max(1, len(lines)):
            raise ToolError(f"{path} has {len(lines)} lines", "out_of_range")
        last_line = min(len(lines), first_line - 1 + min(num_lines, MAX_LINES))
        shown = [f"{number}\t{lines[number - 1]}" for number in range(first_line, last_line + 1)]
        if (first_line, last_line) != (1, len(lines)):
            shown.append(f"[lines {first_line} to {last_line} of {len(lines)}]")
        return "\n".join(shown) or "[empty file]"


class WriteFileTool(InSandbox):
    """``write_file``: write a whole file, which may replace an old one."""

    @tool
    def write_file(self, path: str, content: str) -> str:
        """Write a whole file, in place of an old one if there is one.

        Args:
            path: the file, relative to the workspace.
            content: the new content.
        """
        self.sandbox.write(path, content)
        return f"Wrote {path}, {len(content.encode())} bytes."


class EditFileTool(InSandbox):
    """``edit_file``: replace a text that occurs exactly once."""

    @tool
    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a text in a file; the old text must occur exactly once.

        Args:
            path: the file, relative to the workspace.
            old: the text to replace, exactly as it stands in the file.
            new: the text in its place.
        """
        if not old:
            raise ToolError("old is empty; write_file makes a new file", "invalid_arguments")
        if old == new:
            raise ToolError("old and new are the same", "no_change")
        text = read_text(self, path)
        found = list(re.finditer(r"\r?\n".join(map(re.escape, old.replace("\r\n", "\n").split("\n"))), text))
        if not found:
            raise ToolError(f"{path} does not hold the old text; read_file shows what it holds", "no_match")
        if len(found) > 1:
            words = f"{path} holds the old text {len(found)} times; give more of what is around it"
            raise ToolError(words, "ambiguous")
        start, end = found[0].span()
        if "\r\n" not in old:  # read_file shows lines without their endings, so the new ones get the file's own
            new = _with_endings_of(found[0][0] if "\n" in found[0][0] else text, new)
        self.sandbox.write(path, text[:start] + new + text[end:])
        return f"Edited {path} at line {text.count(chr(10), 0, start) + 1}."


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without ``\\n`` or ``\\r\\n``, with the numbers that Python and grep give them.

    Example:
        >>> lines_of("a\\r\\nb\\x0cc\\u2028d\\n")
        ['a', 'b\\x0cc\\u2028d']
    """
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def _with_endings_of(text: str, new: str) -> str:
    if 2 * text.count("\r\n") <= text.count("\n"):
        return new
    return new.replace("\r\n", "\n").replace("\n", "\r\n")


def read_text(tools: InSandbox, path: str) -> str:
    """Return the content of a text file in the sandbox.

    Raises:
        ToolError: of type ``not_text``, or an error of :meth:`~agentgym.sandbox.Sandbox.read`.
    """
    data = tools.sandbox.read(path)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path} is no text (UTF-8): {len(data)} bytes", "not_text") from None
