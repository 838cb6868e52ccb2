"""Tasks in a mailbox and on a wall of posts."""

from __future__ import annotations

import re

from agentgym.envs.gui.miniwob.view import View, call, click, fill
from agentgym.types import ToolCall

SOLVERS = {}
