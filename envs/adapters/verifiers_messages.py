"""Conversion of messages and grades between verifiers and agentgym."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from agentgym.errors import EnvError, EnvTimeoutError
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
        EnvError: the message contains an image that is not PNG.
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
    """Convert an action to a response of OpenAI's API. Malformed calls stay text."""
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


def grades_of(episode: vf.Episode) -> tuple[dict[str, float], dict[str, float], bool]:
    """Return the weighted rewards and the metrics of the trained agents, and True if a limit ended one of them.

    Raises:
        EnvError: the episode failed, or a reward was not computed.
        EnvTimeoutError: a deadline of verifiers expired.
    """
    if episode.is_timeout or any(trace.is_timeout for trace in episode.traces):
        raise EnvTimeoutError(f"verifiers: {[trace.stop_condition for trace in episode.traces]}")
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces if not trace.ok for error in trace.errors)]
        raise EnvError(f"verifiers: {errors[0].type}: {errors[0].message:.500}" if errors else "verifiers failed")
    learning = [trace for trace in episode.traces if trace.agent.trainable]
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for place, trace in enumerate(learning):
        prefix = f"{trace.agent.name}.{place}." if len(learning) > 1 else ""
        for name, reward in trace.rewards.items():
            if reward is None:
                raise EnvError(f"verifiers: the reward {name!r} was not computed")
            rewards[prefix + name] = float(reward.value)
        metrics |= {prefix + name: value for name, value in trace.metrics.items() if value is not None}
    return rewards, metrics, any(trace.is_truncated for trace in learning)
