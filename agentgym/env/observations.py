"""Conversion of authors' return values to messages that can be rendered, encoded and recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, get_args

from agentgym.canonical import encodable
from agentgym.tool import cut_output
from agentgym.types import ImagePart, Message, Observation, Role, TextPart, ToolResult

MAX_TEXT_BYTES: Final = 1024 * 1024
"""Longest text of one message in bytes of UTF-8. Longer text is cut, with a note at its end."""
_ROLES: Final = get_args(Role)


def as_observation(said: str | Observation, source: str = "an environment") -> Observation:
    """Convert an author's return value to messages that can be encoded. Text becomes one user message.

    Halves of surrogate pairs become question marks, and text above :data:`MAX_TEXT_BYTES` is cut.

    Args:
        said: the value.
        source: what returned it, for the error's message.

    Raises:
        TypeError: the value is neither text nor a sequence of messages, or a message has an unknown role or content.

    Example:
        >>> as_observation("na" + chr(0xD800))[0].text
        'na?'
    """
    if not hasattr(said, "__iter__"):
        raise TypeError(f"{source} must return text or messages, got {said!r:.100}")
    return tuple(_sound(one) for one in ((Message("user", said),) if isinstance(said, str) else said))


def _sound(message: Message) -> Message:
    if not isinstance(message, Message):
        raise TypeError(f"an observation must be text or messages, got {type(message).__name__}")
    if message.role not in _ROLES:
        raise TypeError(f"a message must have one of the roles {', '.join(_ROLES)}; got {message.role!r}")
    content = _text(message.content) if isinstance(message.content, str) else tuple(map(_part, message.content))
    result = None if message.result is None else _result(message.result)
    if content == message.content and result == message.result:
        return message
    return replace(message, content=content, result=result)


def _result(result: ToolResult) -> ToolResult:
    return replace(
        result,
        content=_text(result.content),
        name=_text(result.name),
        call_id=_text(result.call_id),
        error_type=None if result.error_type is None else _text(result.error_type),
    )


def _part(part: TextPart | ImagePart) -> TextPart | ImagePart:
    if isinstance(part, TextPart):
        return TextPart(_text(part.text))
    if not isinstance(part, ImagePart):
        raise TypeError(f"content must consist of TextPart and ImagePart, got {type(part).__name__}")
    return ImagePart(encodable(part.png_base64))


def _text(text: str) -> str:
    if len(text) * 4 <= MAX_TEXT_BYTES:  # a character takes at most four bytes of UTF-8
        return text if text.isascii() else encodable(text)
    return cut_output(text, MAX_TEXT_BYTES)
