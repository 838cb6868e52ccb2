"""Episodes as conversations in OpenAI's message format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentgym.trainers.sft.recorded import calls_apart, spoken_turns
from agentgym.types import ImagePart, Message, ToolCall, ToolSpec, Trajectory


def conversation_of(trajectory: Trajectory, tools: Sequence[ToolSpec] = ()) -> list[dict[str, Any]]:
    """Return the messages of an episode, from the first observation to the last reply.

    Sub-agents and summaries are left out. An assistant message holds the executed action, which may be an expert's in
    place of the policy's. Malformed calls stay text, and their replies have the role ``user``.

    Args:
        trajectory: the episode.
        tools: tools of the environment; if given, the text of a call is not repeated beside the call.

    Example:
        >>> import agentgym
        >>> (group,) = agentgym.collect_rollouts("agentgym/GuessNumber-v0", "oracle", tasks=1, group_size=1)
        >>> [message["role"] for message in conversation_of(group.valid[0])][:3]
        ['user', 'assistant', 'tool']
    """
    rows = rows_of(trajectory.observation)
    for turn in spoken_turns(trajectory):
        action = calls_apart(turn.played or turn.action, tools)
        ids = [f"call_{len(rows)}_{place}" for place, _ in enumerate(_readable_calls(action))]
        rows += rows_of([action, *turn.replies], ids)
    return rows


def rows_of(messages: Sequence[Message], ids: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return messages in OpenAI's format.

    Args:
        ids: ids of the calls that the messages make or answer, in order.
    """
    rows: list[dict[str, Any]] = []
    open_ids = list(ids)
    for message in messages:
        if message.role == "assistant":
            rows.append(_assistant(message, ids))
        elif message.role == "tool" and open_ids:
            name = message.result.name if message.result is not None else ""
            row = {"role": "tool", "tool_call_id": open_ids.pop(0), "content": _content(message)}
            rows.append({**row, "name": name} if name else row)
        elif message.role == "tool":  # the reply to a malformed call, which stays text
            rows.append({"role": "user", "content": _content(message)})
        else:
            rows.append({"role": message.role, "content": _content(message)})
    return rows


def _assistant(message: Message, ids: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"role": "assistant", "content": _content(message)}
    if message.thinking:
        row["reasoning_content"] = message.thinking
    if calls := _readable_calls(message):
        row["content"] = message.answer if message.answer is not None else row["content"]
        row["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for call_id, call in zip(ids, calls, strict=True)
        ]
    return row


def _readable_calls(message: Message) -> list[ToolCall]:
    """Return the calls of a message; none if one of them is malformed."""
    calls = [call for call in message.calls if isinstance(call, ToolCall)]
    return calls if len(calls) == len(message.calls) else []


def _content(message: Message) -> str | list[dict[str, Any]]:
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{part.png_base64}"}}
        if isinstance(part, ImagePart)
        else {"type": "text", "text": part.text}
        for part in message.content
    ]
