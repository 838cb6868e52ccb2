"""The line of code at which an unexpected error was raised, in a user's files or in agentgym."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from agentgym.errors import AgentGymError


def place_of(error: BaseException | None, *, or_ours: bool = True) -> str:
    """Return the place of an unexpected error as `` (FILE:LINE)``; empty for errors whose message suffices.

    Lines of the standard library and of installed packages are skipped, since the user cannot change them.

    Args:
        error: the error, or None.
        or_ours: the place may be in agentgym.
    """
    if isinstance(error, TimeoutError):
        error = error.__cause__  # of asyncio.timeout: the cancellation of what it waited for
    # the message of a SyntaxError names its place
    if error is None or isinstance(error, OSError | AgentGymError | SyntaxError):
        return ""
    steps = traceback.walk_tb(error.__traceback__)
    places = [(name, line) for frame, line in steps if not is_of_a_library(name := frame.f_code.co_filename)]
    if not places or (is_ours(places[-1][0]) and not or_ours):
        return ""
    return f" ({places[-1][0]}:{places[-1][1]})"


def is_of_a_library(filename: str) -> bool:
    """Return True for code of the standard library or of an installed package other than agentgym."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    is_compiled = filename.endswith((".pyx", ".pxi"))  # Cython names its sources, which are not installed
    return not is_ours(filename) and (is_compiled or filename.startswith(("<", *libraries)))


def is_ours(filename: str) -> bool:
    """Return True for code of agentgym."""
    return filename.startswith(str(Path(__file__).parent))
