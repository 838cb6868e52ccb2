"""Base class of environments with household commands, given as tool calls or as text."""

from __future__ import annotations

from agentgym.call_syntax import format_call, parse_calls
from agentgym.env.env import Env
from agentgym.envs.household.commands import TOOLS, Command, call_of, command_of, format_command, parse_command
from agentgym.envs.interfaces import Interface, checked_interface
from agentgym.errors import ToolError
from agentgym.tool import error_result
from agentgym.types import Call, MalformedCall, Message, Observation, ToolCall, ToolResult, ToolSpec

NOTHING_HAPPENS = "Nothing happens."
"""ALFWorld's answer to an impossible or unknown command."""

_NO_CALL = f"Call one of the tools: {', '.join(spec.name for spec in TOOLS)}."
_NO_COMMAND = "Write a command on the last line; the command help lists them."


class CommandEnv(Env):
    """An environment that executes household commands. Subclasses implement :meth:`execute`.

    With ``interface="tools"``, the calls of a turn run in order, each with its own tool result. A wrong call gives a
    typed error and does not stop the others. With ``interface="text"``, the last non-empty line of the message is the
    command, and the answer is a user message.
    """

    def __init__(self, *, interface: Interface = "tools", max_turns: int, render_mode: str | None = None) -> None:
        self.interface = checked_interface(interface)
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------ methods to implement

    def execute(self, command: Command) -> str | None:
        """Execute a command and return the answer, or None if it is impossible in this state."""
        raise NotImplementedError(f"{type(self).__name__} must implement execute(command)")

    def execute_line(self, line: str) -> str | None:
        """Execute a line of text and return the answer, or None if it is impossible or unknown."""
        command = parse_command(line)
        return None if command is None else self.execute(command)

    # ----------------------------------------------------------------------------------------------------- Env

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return TOOLS if self.interface == "tools" else ()

    def respond(self, action: Message) -> Observation:
        if self.interface == "tools":
            if action.calls:
                return tuple([self._answer(call) for call in action.calls])
            self.refuse()
            return (Message("user", _NO_CALL),)
        line = _last_line(action.text)
        if not line:
            self.refuse()
            return (Message("user", _NO_COMMAND),)
        said = self.execute_line(line)
        if said is None:
            self.refuse()
            said = NOTHING_HAPPENS
        return (Message("user", said),)

    def parse_action(self, text: str) -> Message:
        """Convert a person's input in either interface: commands (``go to fridge 1``) or calls (``go_to: fridge 1``).

        In the tools interface every line is a call.
        """
        commands = [parse_command(line.lower()) for line in text.splitlines() if line.strip()]
        known = [command for command in commands if command is not None]
        if known and len(known) == len(commands):
            return self.message_of(*known)
        if self.interface == "text":
            return Message("assistant", _as_commands(text))
        return Message("assistant", text, parse_calls(text, TOOLS))

    def message_of(self, *commands: Command) -> Message:
        """Return the assistant message with these commands in the current interface."""
        if self.interface == "text":
            return Message("assistant", "\n".join(map(format_command, commands)))
        calls = tuple([call_of(command, str(index)) for index, command in enumerate(commands)])
        return Message("assistant", "\n".join([format_call(call, TOOLS) for call in calls]), calls)

    # --------------------------------------------------------------------------------------------------- private

    def _answer(self, call: Call) -> Message:
        try:
            if isinstance(call, MalformedCall):
                raise ToolError(f"could not read the call {call.text!r}: {call.reason}", "malformed_call")
            if self.episode.is_over:
                raise ToolError("the episode has ended; this call was not run", "episode_over")
            said = self.execute(command_of(call))
        except ToolError as error:
            self.refuse()
            result = error_result(error, *((call.name, call.id) if isinstance(call, ToolCall) else ()))
            return Message("tool", result.content, (), result)
        if said is None:
            self.refuse()
            said = NOTHING_HAPPENS
        return Message("tool", said, (), ToolResult(said, call.name, call.id))


def _last_line(text: str) -> str:
    lines = text.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _as_commands(text: str) -> str:
    """Convert a call in the compact call syntax to a command; return any other text unchanged."""
    calls = parse_calls(text, TOOLS)
    try:
        return "\n".join(format_command(command_of(call)) for call in calls if isinstance(call, ToolCall)) or text
    except ToolError:
        return text
