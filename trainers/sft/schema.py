"""Comparison of a demonstrated call with the argument schema of its tool."""

from __future__ import annotations

from collections.abc import Iterable

from agentgym.json_schema.reading import described, properties, required
from agentgym.json_schema.validation import violations
from agentgym.trainers.sft.conversation import Conversation
from agentgym.types import ToolCall, ToolSpec

_MOST_NAMED = 8


def fillers_note(conversations: Iterable[Conversation]) -> str:
    """Return a note with the number of nulls that were left out; empty if there were none."""
    count = sum(conversation.num_fillers for conversation in conversations)
    if not count:
        return ""
    return (
        f"note: sft.files: {count} nulls are left out of arguments and tools whose schema does not have or allow them; "
        "tables write them into rows that lack a value"
    )


def strangers_note(conversations: Iterable[Conversation], tools: Iterable[ToolSpec], env_id: str) -> str:
    """Return a note on tools of conversations that the environment does not have; empty if it has all, or none.

    Example:
        >>> from agentgym.trainers.sft.conversation import read_conversation
        >>> from agentgym.types import ToolSpec
        >>> asked = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
        >>> tools = [{"type": "function", "function": {"name": name}} for name in ("look", "fly")]
        >>> row = read_conversation(asked | {"tools": tools}, "rows.jsonl, line 1")
        >>> note = strangers_note([row], [ToolSpec("look", "", {})], "House-v0")
        >>> note.partition(": no tools")[0]
        'note: sft.files: fly'
    """
    known = sorted(tool.name for tool in tools)
    told = dict.fromkeys(tool.name for one in conversations for tool in one.tools)
    strange = [name for name in told if name not in known]
    if not known or not strange:
        return ""
    more = ", ..." if len(strange) > _MOST_NAMED else ""
    return (
        f"note: sft.files: {', '.join(strange[:_MOST_NAMED])}{more}: no tools of {env_id}, whose tools are "
        f"{', '.join(known)}; the policy learns to call what is not there"
    )


def misfits_note(conversations: Iterable[Conversation]) -> str:
    """Return a note with the number of calls that break their tool's schema and the first of them; empty if none do."""
    found = [
        f"{conversation.where}: {call.name}: {why}"
        for conversation in conversations
        for exchange in conversation.exchanges
        for call in exchange.said.calls
        if isinstance(call, ToolCall) and (why := _why(call, conversation.tools))
    ]
    if not found:
        return ""
    calls = "1 call breaks" if len(found) == 1 else f"{len(found)} calls break"
    return f"note: sft.files: {calls} the schema of the tool and will be learnt ({found[0]})"


def _why(call: ToolCall, tools: Iterable[ToolSpec]) -> str:
    return next((misfit(call, tool) for tool in tools if tool.name == call.name), "")


def misfit(call: ToolCall, spec: ToolSpec) -> str:
    """Return why a call's arguments break the schema of its tool; empty if they fit.

    Example:
        >>> schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        >>> spec = ToolSpec("guess", "", schema)
        >>> [misfit(ToolCall("guess", given), spec) for given in ({"number": 3}, {"number": "three"}, {})]
        ['', "number is 'three', expected integer", 'number is missing']
    """
    root, arguments = spec.parameters, dict(call.arguments)
    found = violations(arguments, root)
    if not found:
        return ""
    fields = properties(root, root)
    for name in required(root, root):
        if name not in arguments:
            return f"{name} is missing"
    if name := next((str(one.path[0]) for one in found if one.path), ""):
        wanted = described(fields.get(name, {}), root, has_values=True)
        return f"{name} is {str(arguments[name])[:60]!r}, expected {wanted}"
    unknown = next((name for name in arguments if name not in fields), "")
    return f"{unknown} is unknown, expected {', '.join(fields) or 'no arguments'}" if unknown else found[0].message
