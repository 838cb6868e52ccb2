"""Scripted policies for tasks of MiniWoB++: functions from the agent's view to its next call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from agentgym.envs.gui.miniwob.solvers import clicking, drawings, mail, words
from agentgym.envs.gui.miniwob.view import View
from agentgym.types import ToolCall

SOLVERS: Final[Mapping[str, Callable[[View], ToolCall]]] = {
    **clicking.SOLVERS,
    **words.SOLVERS,
    **drawings.SOLVERS,
    **mail.SOLVERS,
}
"""The policies by the name of the task."""
AMBIGUOUS: Final = frozenset({"email-inbox", "email-inbox-forward", "email-inbox-noscroll"})
"""Tasks whose policies cannot solve every seed: where two mails are by the sender whose mail is to be forwarded, the
page means one of them and does not say which. All others solve the twenty seeds of
``benchmarks/gui/miniwob_solvers.py``."""
