"""How an agent's action compares with an expert's.

The scores are those of "UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning", as its released code
has them (X-PLUG/MobileAgent, ``UI-S1/verl/utils/reward_score/gui_traj.py``): a tenth for the format, nine tenths for
the action, of which a readable one earns a tenth, one of the same tool a half, and the same one all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.canonical import canonical
from agentgym.types import Call, Message, ToolCall, ToolSpec

FORMAT_SHARE = 0.1
READABLE, SAME_TOOL, SAME = 0.1, 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What an action earns beside an expert's, and whether it is the same."""

    format: float
    """Part of the reward for an action that can be read, 0 or 0.1."""
    action: float
    """Part of the reward for the action itself, 0 to 0.9."""
    is_match: bool


def compare(action: Message, expert: Message, tools: Sequence[ToolSpec]) -> Comparison:
    """Compare an action with an expert's.

    Calls match if tools and arguments are equal; text in place of calls if it is equal up to white space, thinking
    left out. Text that does not match earns nothing: it has no format that could be right.

    Example:
        >>> go = ToolSpec("go", "", {"properties": {"to": {"type": "string"}}, "required": ["to"]})
        >>> def going(to):
        ...     return Message("assistant", "", (ToolCall("go", {"to": to}),))
        >>> compare(going("east"), going("west"), [go])
        Comparison(format=0.1, action=0.45, is_match=False)
    """
    if not expert.calls or not action.calls:
        is_same = not expert.calls and not action.calls and said(action) == said(expert)
        return _scored(SAME if is_same else 0.0, is_same)
    if not is_readable(action, tools):
        return _scored(0.0, False)
    if _calls(action.calls) == _calls(expert.calls):
        return _scored(SAME, True)
    is_same_tool = _names(action.calls) == _names(expert.calls)
    return _scored(SAME_TOOL if is_same_tool else READABLE, False)


def is_readable(action: Message, tools: Sequence[ToolSpec]) -> bool:
    """Whether every call is one of a tool that exists, with the arguments that it cannot do without."""
    required = {tool.name: tool.parameters.get("required", ()) for tool in tools}
    return all(
        isinstance(call, ToolCall)
        and call.name in required
        and all(name in call.arguments for name in required[call.name])
        for call in action.calls
    )


def said(action: Message) -> str:
    """What a message says after its thinking, white space folded."""
    return " ".join(action.text.rpartition("</think>")[2].split())


def _scored(action: float, is_match: bool) -> Comparison:
    return Comparison(FORMAT_SHARE if action else 0.0, (1 - FORMAT_SHARE) * action, is_match)


def _calls(calls: Sequence[Call]) -> str:
    return canonical([[call.name, dict(call.arguments)] for call in calls if isinstance(call, ToolCall)])


def _names(calls: Sequence[Call]) -> list[str]:
    return [call.name for call in calls if isinstance(call, ToolCall)]
