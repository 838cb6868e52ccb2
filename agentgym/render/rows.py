"""Changes of a conversation's rows for chat templates that do not accept them as they are.

A row is a message as a dict for ``apply_chat_template``. No change drops a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

Chat = list[dict[str, Any]]
"""Messages as dicts for ``apply_chat_template``."""


def with_system_text(rows: Chat, text: str) -> Chat:
    """Append a text to the first system message, or add one with it."""
    if rows and rows[0]["role"] == "system":
        return [{**rows[0], "content": f"{rows[0]['content']}\n\n{text}"}, *rows[1:]]
    return [{"role": "system", "content": text}, *rows]


def without_system(rows: Chat) -> Chat:
    """Move system messages into the user message that follows."""
    kept: Chat = []
    waiting: list[str] = []
    for row in rows:
        if row["role"] == "system":
            waiting.append(row["content"])
        elif waiting and row["role"] == "user":
            kept.append({**row, "content": "\n\n".join([*waiting, row["content"]])})
            waiting = []
        else:
            kept.append(row)
    return kept + [{"role": "user", "content": "\n\n".join(waiting)} for _ in waiting[:1]]


def with_one_system(rows: Chat) -> Chat:
    """Join the system messages at the beginning to one."""
    first = list(takewhile(lambda row: row["role"] == "system", rows))
    return [{**first[0], "content": _texts(first)}, *rows[len(first) :]] if first else rows


def with_late_as_user(rows: Chat) -> Chat:
    """Turn system messages after the beginning into user messages."""
    num_first = sum(1 for _ in takewhile(lambda row: row["role"] == "system", rows))
    late = ({**row, "role": "user"} if row["role"] == "system" else row for row in rows[num_first:])
    return [*rows[:num_first], *late]


def with_joined_turns(rows: Chat) -> Chat:
    """Join neighbouring assistant messages: their texts, their thinking and their calls."""
    kept: Chat = []
    for row in rows:
        if not kept or row["role"] != "assistant" or kept[-1]["role"] != "assistant":
            kept.append(row)
            continue
        both = (kept[-1], row)
        whole = {**kept[-1], **row, "content": _texts(both)}
        for key in ("reasoning_content", "thinking"):
            if key in whole:
                whole[key] = _texts(both, key)
        if "tool_calls" in whole:
            whole["tool_calls"] = [call for one in both for call in one.get("tool_calls", ())]
        kept[-1] = whole
    return kept


def _texts(rows: Sequence[Mapping[str, Any]], key: str = "content") -> str:
    return "\n\n".join(row[key] for row in rows if row.get(key))


def with_results_first(rows: Chat) -> Chat:
    """Move tool results up to their calls, before messages of the user."""
    kept: Chat = []
    for _, group in groupby(rows, key=lambda row: bool(row["role"] == "assistant")):
        kept += sorted(group, key=lambda row: bool(row["role"] not in ("assistant", "tool")))
    return kept


def with_results(rows: Chat) -> Chat:
    """Give each call whose results a user message replaces a placeholder as its result."""
    kept: Chat = []
    calls: Chat = []
    for row in rows:
        if row["role"] == "tool":
            calls = [call for call in calls if call["id"] != row["tool_call_id"]]
        else:
            kept += map(_no_answer, calls if row["role"] == "user" else ())
            calls = row.get("tool_calls", [])
        kept.append(row)
    return kept


def _no_answer(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "content": "(no answer)", "name": call["function"]["name"], "tool_call_id": call["id"]}


def merged(rows: Chat, roles: Sequence[str]) -> Chat:
    """Append user messages to the message before if that has one of the roles."""
    kept: Chat = []
    for row in rows:
        if kept and row["role"] == "user" and kept[-1]["role"] in roles:
            kept[-1] = {**kept[-1], "content": f"{kept[-1]['content']}\n{row['content']}"}
        else:
            kept.append(row)
    return kept
