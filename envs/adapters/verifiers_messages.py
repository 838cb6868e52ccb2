"""Messages of verifiers as ours, and ours as what it reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from agentgym.errors import EnvError
from agentgym.types import ImagePart, Message, Role, TextPart, ToolCall, ToolResult, ToolSpec

if TYPE_CHECKING:
    import verifiers.v1 as vf

_PNG: Final = "data:image/png;base64,"


def tools_of(request: vf.Request) -> tuple[ToolSpec, ...]:
    """Return the tools that a request offers."""
    return tuple(ToolSpec(tool.name, tool.description or tool.name, tool.parameters) for tool in request.tools or ())


def message_of(said: vf.Message) -> Message:
    """Return a message of a request.

    Raises:
        EnvError: it holds an image that is no PNG.
    """
    role: Role = said.role
    content: Any = said.content or ""
    if not isinstance(content, str):
        content = tuple(_part(part) for part in content)
    if role != "tool":
        return Message(role, content)
    text = content if isinstance(content, str) else "".join(part.text for part in content if isinstance(part, TextPart))
    return Message(role, content, result=ToolResult(text, said.name or "", said.tool_call_id))


def _part(part: vf.ContentPart) -> TextPart | ImagePart:
    if part.type == "text":
        return TextPart(part.text)
    url = part.image_url.url
    if not url.startswith(_PNG):
        raise EnvError(f"verifiers showed an image that is no PNG: {url[:60]}")
    return ImagePart(url.removeprefix(_PNG))


def completion_of(action: Message, turn: int) -> dict[str, Any]:
    """Return an action as what OpenAI's API answers; calls that could not be read stay text."""
    calls = [call for call in action.calls if isinstance(call, ToolCall)]
    listed = [
        {
            "id": f"call_{turn}_{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for place, call in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": action.text}
    if action.thinking:
        message["reasoning_content"] = action.thinking
    if listed:
        message["tool_calls"] = listed
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if listed else "stop"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    head = {"id": f"agentgym-{turn}", "object": "chat.completion", "created": 0, "model": "agentgym"}
    return {**head, "choices": [choice], "usage": usage}
