"""Base class of environments whose actions are lines of text, as most engines of other projects expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentgym.call_syntax import format_call, parse_calls
from agentgym.envs.interfaces import InterfaceEnv
from agentgym.errors import ToolError
from agentgym.tool import cut_output, tool
from agentgym.types import Message, ToolCall, ToolSpec

_NO_ACTION = "Write an action on the last line."


class LineEnv(InterfaceEnv):
    """An environment that executes one line of text per turn. Subclasses implement :meth:`do`.

    With ``interface="tools"`` there is one tool, ``act``. With ``interface="text"`` the last non-empty line of the
    message is the action.
    """

    # ------------------------------------------------------------------------------------ methods to implement

    def do(self, line: str) -> str:
        """Execute an action and return the text of its result.

        Raises:
            ToolError: the action is impossible; the message is for the policy.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement do(line)")

    def action_names(self) -> Sequence[str]:
        """Return all actions if they are few and constant, else none."""
        return ()

    def read_line(self, text: str) -> str:
        """Return the action in a message of the text interface; empty if there is none."""
        return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")

    # ----------------------------------------------------------------------------------------------------- ToolEnv

    @tool
    def act(self, action: str) -> str:
        """Take one action and see what happens.

        Args:
            action: What to do.
        """
        return self.do(action)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        names = list(self.action_names())
        return tuple(_with_names(spec, names) if names and spec.name == "act" else spec for spec in super().tools)

    def parse_action(self, text: str) -> Message:
        """Convert a person's input in either interface: an action (``go north``) or a call (``act: go north``).

        In the tools interface every line is a call.
        """
        calls = parse_calls(text, self._specs)
        are_calls = bool(calls) and all(isinstance(call, ToolCall) and call.name in self._tools for call in calls)
        if self.interface == "text":
            one = calls[0] if len(calls) == 1 else None
            is_act = isinstance(one, ToolCall) and one.name == "act" and isinstance(one.arguments.get("action"), str)
            return Message("assistant", one.arguments["action"] if is_act and isinstance(one, ToolCall) else text)
        if are_calls or not text.strip():
            return Message("assistant", text, calls)
        return self.message_of(*(line.strip() for line in text.split("\n") if line.strip()))

    def message_of(self, *lines: str) -> Message:
        """Return the assistant message with these actions in the current interface."""
        if self.interface == "text":
            return Message("assistant", "\n".join(lines))
        calls = tuple([ToolCall("act", {"action": line}, str(index)) for index, line in enumerate(lines)])
        return Message("assistant", "\n".join([format_call(call, self._specs) for call in calls]), calls)

    def respond_to_text(self, action: Message) -> str:
        try:
            line = self.read_line(action.text)
            if not line:
                raise ToolError(_NO_ACTION)
            return cut_output(self.do(line))
        except ToolError as error:
            self.refuse()
            return cut_output(str(error))


def _with_names(spec: ToolSpec, names: list[str]) -> ToolSpec:
    parameters: dict[str, Any] = {**spec.parameters, "properties": {**spec.parameters["properties"]}}
    parameters["properties"]["action"] = {**parameters["properties"]["action"], "enum": names}
    return replace(spec, parameters=parameters)
