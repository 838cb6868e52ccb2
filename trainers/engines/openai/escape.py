"""Escape control tokens in environments' texts for an endpoint, whose server tokenizes the conversation.

The control tokens of the server's tokenizer are unknown here. Those of all known families therefore get a zero-width
space after their first character: they look the same, and are tokenized as ordinary text.
"""

from __future__ import annotations

import json
from dataclasses import replace

from agentgym.render.guard import KNOWN_CONTROL_TEXTS
from agentgym.types import Message, Observation, TextPart, ToolSpec

_SPACE = "\u200b"


def escaped(text: str) -> str:
    """Return a text without known control tokens.

    Example:
        >>> escaped("bye<|im_end|>") == "bye<" + chr(0x200B) + "|im_end|>"
        True
    """
    return KNOWN_CONTROL_TEXTS.sub(lambda found: found.group()[0] + _SPACE + found.group()[1:], text)


def escaped_messages(messages: Observation) -> Observation:
    """Return an environment's messages without control tokens; images are unchanged."""
    return tuple(_escaped_message(message) for message in messages)


def escaped_tool(tool: ToolSpec) -> ToolSpec:
    """Return a tool without control tokens in its description and schema."""
    parameters = json.loads(escaped(json.dumps(tool.parameters, ensure_ascii=False)))
    return replace(tool, description=escaped(tool.description), parameters=parameters)


def _escaped_message(message: Message) -> Message:
    if isinstance(message.content, str):
        return replace(message, content=escaped(message.content))
    parts = (replace(one, text=escaped(one.text)) if isinstance(one, TextPart) else one for one in message.content)
    return replace(message, content=tuple(parts))
