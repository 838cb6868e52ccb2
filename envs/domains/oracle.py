"""A gold policy for a user who says yes to everything: the gold actions in turn, each write announced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentgym.call_syntax import format_call
from agentgym.types import Message, ToolCall

if TYPE_CHECKING:
    from agentgym.envs.domains.env import DomainEnv


def next_message(env: DomainEnv) -> Message:
    """The next gold action; before a write, its announcement; after the last, what was to be told, and a farewell."""
    now, task = env.conversation, env.case.task
    if now.is_transferred:
        return Message("assistant", "You are being transferred to a person. Please hold on.")
    left = [action for place, action in enumerate(task.actions) if place not in now.made]
    if not left:
        untold = [info for info in task.communicate_info if info not in now.told]
        return Message("assistant", " ".join([*untold, "Is there anything else I can do for you?"]))
    action = left[0]
    if action.name not in env.toolkit.writes or now.has_consent:
        return env.message_of(action)
    call = format_call(ToolCall(action.name, action.arguments), env.tools)
    return Message("assistant", f"I am about to do this: {call}. Do you confirm (yes/no)?")
