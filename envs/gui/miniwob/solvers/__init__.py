"""Scripted policies for tasks of MiniWoB++: functions of what the agent can see, to the next call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from agentgym.envs.gui.miniwob.solvers import clicking, drawings, forms, mail, menus, words
from agentgym.envs.gui.miniwob.view import View
from agentgym.types import ToolCall

SOLVERS: Final[Mapping[str, Callable[[View], ToolCall]]] = {
    **clicking.SOLVERS,
    **menus.SOLVERS,
    **words.SOLVERS,
    **forms.SOLVERS,
    **drawings.SOLVERS,
    **mail.SOLVERS,
}
"""The policies by the name of the task."""
