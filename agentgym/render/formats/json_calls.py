"""Calls as JSON: Llama 3 (``llama_json``), Mistral (``mistral``), Phi-4 (``phi``), and any model (``json``)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym.render.formats.reading import (
    MAX_CALLS,
    Block,
    JsonCalls,
    NotReadableError,
    Reading,
    Span,
    as_json,
    json_at,
    json_call,
    json_value,
    listed_calls,
    one_call,
    outside,
    read_blocks,
    too_many,
)
from agentgym.types import Call, MalformedCall, ToolCall, ToolSpec


class LlamaJson:
    """``{"name": ..., "parameters": {...}}`` as the whole answer; several are separated by ``;``.

    Text that does not begin with a call is an answer without calls.

    Example:
        >>> LlamaJson().parse('{"name": "look", "parameters": {}}', [])
        Reading(text='', calls=(ToolCall(name='look', arguments={}, id='0'),))
        >>> LlamaJson().parse("I am done.", [])
        Reading(text='I am done.', calls=())
    """

    name = "llama_json"
    marks = ("<|python_tag|>",)

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        body = text.replace("<|python_tag|>", "").strip()
        if not body.startswith("{"):
            return Reading(body)
        calls, at = JsonCalls(body, "parameters").listed(0, "; \n\t,")
        return Reading(body[at:].strip(), calls)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return "; ".join(as_json({"name": call.name, "parameters": dict(call.arguments)}, self.marks) for call in calls)


class Mistral:
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]NAME[ARGS]{...}`` of newer models.

    Example:
        >>> Mistral().parse('[TOOL_CALLS][{"name": "look", "arguments": {}}]', []).calls
        (ToolCall(name='look', arguments={}, id='0'),)
        >>> Mistral().parse("[TOOL_CALLS]look[ARGS]{}", []).calls
        (ToolCall(name='look', arguments={}, id='0'),)
    """

    name = "mistral"
    marks = ("[TOOL_CALLS]", "[ARGS]", "</s>")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> Sequence[Call]:
            body = block.body.strip()
            if body.startswith("["):
                return listed_calls(body, block.span, call_id)
            name, named, arguments = body.partition("[ARGS]")
            if not named:  # [TOOL_CALLS]NAME{...}
                name, brace, rest = body.partition("{")
                arguments = brace + rest
            try:
                return (json_call({"name": name.strip(), "arguments": json_value(arguments or "{}")}, call_id),)
            except NotReadableError as error:
                return (MalformedCall(block.span, str(error), body),)

        return read_blocks(text, "[TOOL_CALLS]", "</s>", read)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return "[TOOL_CALLS]" + as_json(
            [{"name": call.name, "arguments": dict(call.arguments)} for call in calls], self.marks
        )


class Phi:
    """``<|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>``, or ``functools[...]``: Phi-4-mini.

    Example:
        >>> Phi().parse('<|tool_call|>[{"name": "look", "arguments": {}}]<|/tool_call|>', []).calls
        (ToolCall(name='look', arguments={}, id='0'),)
        >>> Phi().parse('functools[{"name": "look", "arguments": {}}]', []).calls
        (ToolCall(name='look', arguments={}, id='0'),)
    """

    name = "phi"
    marks = ("<|tool_call|>", "<|/tool_call|>", "<|end|>")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> Sequence[Call]:
            return listed_calls(block.body.strip(), block.span, call_id)

        def read_bare(block: Block, call_id: str) -> Sequence[Call]:
            return listed_calls("[" + block.body.strip(), block.span, call_id)

        if "<|tool_call|>" in text or "functools[" not in text:
            return read_blocks(text, "<|tool_call|>", "<|/tool_call|>", read)
        return read_blocks(text, "functools[", "<|end|>", read_bare)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        bodies = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
        return f"<|tool_call|>{as_json(bodies, self.marks)}<|/tool_call|>"


class Json:
    """``{"name": ..., "arguments": {...}}`` anywhere in the answer, fenced or bare; for models without a tool-call
    format.

    An object that does not name a tool is text.

    Example:
        >>> Json().parse('I look.\\n```json\\n{"name": "look", "arguments": {}}\\n```', [])
        Reading(text='I look.', calls=(ToolCall(name='look', arguments={}, id='0'),))
    """

    name = "json"
    marks = ()
    _START = re.compile(r'(?:```(?:json)?\s*)?(\{\s*"(?:name|arguments|parameters)")')
    _END = re.compile(r"\s*```")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        calls: list[Call] = []
        spans: list[Span] = []
        objects = JsonCalls(text, "arguments")
        found = self._START.search(text)
        while found and len(calls) < MAX_CALLS:
            call, end = objects.call(found.start(1), str(len(calls)), in_prose=True)
            fence = self._END.match(text, end) if found.group().startswith("```") else None
            calls.append(call)
            spans.append((found.start(), fence.end() if fence else end))
            found = self._START.search(text, spans[-1][1])
        if found:
            calls.append(too_many(text, found.start()))
            spans.append((found.start(), len(text)))
        return Reading(outside(text, spans), tuple(calls))

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return "\n".join(as_json({"name": call.name, "arguments": dict(call.arguments)}) for call in calls)


class React:
    """``Action: NAME`` and ``Action Input: {...}`` on separate lines; the text before them is the reasoning.

    Example:
        >>> React().parse('Thought: I look.\\nAction: look\\nAction Input: {}', [])
        Reading(text='Thought: I look.', calls=(ToolCall(name='look', arguments={}, id='0'),))
    """

    name = "react"
    marks = ("Action:", "Action Input:")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> tuple[Call]:
            name, found, written = block.body.partition("Action Input:")
            try:
                if not found:
                    raise NotReadableError("expected `Action: NAME`, then `Action Input: {...}`")
                value, _ = json_at(written.partition("\nObservation:")[0] or "{}")
                return (json_call({"name": name.strip(), "arguments": value}, call_id),)
            except NotReadableError as error:
                return (MalformedCall(block.span, str(error), block.body.strip()),)

        return read_blocks(text, "Action:", "\nObservation:", read)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return "\n".join(
            f"Action: {call.name}\nAction Input: {as_json(dict(call.arguments), self.marks)}" for call in calls
        )


# ------------------------ ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen2.5, Qwen3, SmolLM3


class Hermes:
    """JSON between tags: one call, or a list of calls as SmolLM2 writes them.

    Example:
        >>> Hermes().parse('Hm. <tool_call>{"name": "look", "arguments": {}}</tool_call>', [])
        Reading(text='Hm.', calls=(ToolCall(name='look', arguments={}, id='0'),))
    """

    name = "hermes"
    marks = ("<tool_call>", "</tool_call>")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> Sequence[Call]:
            if block.body.lstrip().startswith("["):
                return listed_calls(block.body.strip(), block.span, call_id)
            return one_call(block, lambda: json_call(json_value(block.body), call_id))

        return read_blocks(text, "<tool_call>", "</tool_call>", read)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        bodies = (as_json({"name": call.name, "arguments": dict(call.arguments)}, self.marks) for call in calls)
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


# --------------------- DeepSeek's calls between special tokens: V3 and R1 with a fenced JSON block, V3.1 with bare JSON

_SEP = "<｜tool▁sep｜>"
_FENCED = re.compile(r"(?:function)?" + re.escape(_SEP) + r"([^\n`]*)\n?```(?:json)?\s*(.*?)\s*(?:```|\Z)", re.DOTALL)


class DeepSeek:
    """``<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`` and fenced JSON, or ``NAME<｜tool▁sep｜>{...}``.

    Example:
        >>> DeepSeek().parse("<｜tool▁call▁begin｜>look<｜tool▁sep｜>{}<｜tool▁call▁end｜>", []).calls
        (ToolCall(name='look', arguments={}, id='0'),)
    """

    name = "deepseek"
    marks = (
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "```",
    )

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> tuple[Call]:
            return one_call(block, lambda: _call(block.body, call_id))

        reading = read_blocks(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", read)
        said = reading.text.replace("<｜tool▁calls▁begin｜>", "").replace("<｜tool▁calls▁end｜>", "")
        return Reading(said.strip(), reading.calls)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        bodies = []
        for call in calls:
            written = as_json(dict(call.arguments), self.marks)
            bodies.append(f"<｜tool▁call▁begin｜>function{_SEP}{call.name}\n```json\n{written}\n```<｜tool▁call▁end｜>")
        return "<｜tool▁calls▁begin｜>" + "\n".join(bodies) + "<｜tool▁calls▁end｜>"


def _call(body: str, call_id: str) -> ToolCall:
    fenced = _FENCED.match(body.strip())
    if fenced is not None:
        name, arguments = fenced.groups()
    else:
        name, found, arguments = body.partition(_SEP)
        if not found:
            raise NotReadableError(f"expected NAME{_SEP}{{...}}")
    return json_call({"name": name.strip(), "arguments": json_value(arguments)}, call_id)
