"""Tools as text, for endpoints without tool support: described in the first message, and parsed from the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentgym.render.formats.reading import ToolFormat
from agentgym.render.thinking import split_thinking
from agentgym.render.tool_texts import result_text, tools_text
from agentgym.types import ImagePart, Message, Observation, TextPart, ToolCall, ToolSpec

_THINK = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class TextTools:
    """The tools of one episode as text, and the parser of its calls.

    Example:
        >>> from agentgym.render.families import FORMATS
        >>> guess = ToolSpec("guess", "Guess it.", {"properties": {"number": {"type": "integer"}}})
        >>> said = Message("assistant", '{"name": "guess", "arguments": {"number": 2}}')
        >>> TextTools(FORMATS["json"], (guess,)).read(said).calls
        (ToolCall(name='guess', arguments={'number': 2}, id='0'),)
    """

    format: ToolFormat
    tools: Sequence[ToolSpec]
    style: Literal["schema", "compact"] = "schema"
    is_told: bool = True
    """False if the server's chat template describes the tools."""
    keeps_results: bool = False
    """True if the server's chat template renders messages of the role ``tool``."""

    def told(self, observation: Observation) -> Observation:
        """Return the first observation with the tools in its system message, which is added if there is none."""
        if not self.tools or not self.is_told:
            return observation
        text = tools_text(self.format, self.tools, self.style)
        first, rest = observation[0], observation[1:]
        if first.role != "system":
            return (Message("system", text), *observation)
        return (Message("system", f"{first.text}\n\n{text}"), *rest)

    def shown(self, example: Observation) -> Observation:
        """Return the messages of a worked example in the conversation's format, with calls and results as text."""
        told = (self.written(one) if one.role == "assistant" else one for one in example if one.role != "system")
        return self.replied(tuple(told))

    def replied(self, replies: Observation) -> Observation:
        """Return replies with tool results as user messages, unless the template takes them."""
        if self.keeps_results:
            return replies
        return tuple(_as_user(one) if one.role == "tool" else one for one in replies)

    def read(self, action: Message) -> Message:
        """Return an answer with the calls parsed from its text; calls within the thinking are ignored."""
        if not self.tools:
            return action
        thought = split_thinking(action.text, _THINK, is_open=False)
        reading = self.format.parse(thought.rest, self.tools)
        calls = reading.calls_after(len(action.text) - len(thought.rest))
        return replace(action, calls=calls, thinking=action.thinking or thought.thinking, answer=reading.text)

    def written(self, action: Message) -> Message:
        """Return an action that replaced the policy's, with its calls as text."""
        calls = [call for call in action.calls if isinstance(call, ToolCall)]
        return Message("assistant", self.format.format(calls, self.tools)) if calls else action


def _as_user(result: Message) -> Message:
    images = [] if isinstance(result.content, str) else [one for one in result.content if isinstance(one, ImagePart)]
    text = result_text(result.text)
    return Message("user", (TextPart(text), *images) if images else text)
