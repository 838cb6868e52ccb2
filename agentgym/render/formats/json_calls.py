"""Calls as JSON: Llama 3 (``llama_json``), Mistral (``mistral``), Phi-4 (``phi``), and any model (``json``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.render.formats.blocks import Block, one_call, outside, read_blocks, split_at_tag
from agentgym.render.formats.reading import (
    INVENTED,
    MAX_CALLS,
    JsonCalls,
    NotReadableError,
    Reading,
    Span,
    as_json,
    invented_rest,
    json_at,
    json_call,
    json_end,
    json_value,
    listed_calls,
    too_many,
)
from agentgym.types import Call, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class _Named:
    """A block that begins with the tool's name, and goes on with its arguments as JSON.

    Args:
        head: pattern of the text before the arguments, with the name as its first group.
        expected: that text for error messages.
        fence: text that may follow the arguments.
    """

    head: re.Pattern[str]
    expected: str
    fence: str = ""

    def value_end(self, text: str, at: int) -> int:
        """Return the end of the arguments and their fence in the block that begins at ``at``, or ``at``."""
        found = self.head.match(text, at)
        end = json_end(text, found.end()) if found else at
        if found is None or end == found.end():
            return at
        after = re.compile(r"\s*+" + re.escape(self.fence)).match(text, end)
        return after.end() if after and self.fence else end

    def call(self, body: str, call_id: str) -> ToolCall:
        """Return the call in a block.

        Raises:
            NotReadableError: the block has another structure.
        """
        found = self.head.match(body)
        if found is None:
            raise NotReadableError(f"expected {self.expected}")
        arguments = body[found.end() :].rstrip().removesuffix(self.fence)
        return json_call({"name": str(found[found.lastindex or 0]).strip(), "arguments": arguments}, call_id)


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
    _OPENS = re.compile(r"\s*+\{")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        said, body = split_at_tag(text, "<|python_tag|>", self._OPENS)
        if not body.startswith("{"):
            return Reading(text.replace("<|python_tag|>", "").strip())
        calls, at = JsonCalls(body, "parameters").listed(0, "; \n\t,")
        return Reading("\n".join(part for part in (said, body[at:].strip()) if part), calls)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return "; ".join(as_json({"name": call.name, "parameters": dict(call.arguments)}, self.marks) for call in calls)


class Mistral:
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]NAME[ARGS]{...}`` of newer models, with or
    without ``[CALL_ID]ID`` before the arguments.

    Example:
        >>> Mistral().parse('[TOOL_CALLS][{"name": "look", "arguments": {}}]', []).calls
        (ToolCall(name='look', arguments={}, id='0'),)
        >>> Mistral().parse("[TOOL_CALLS]look[ARGS]{}", []).calls
        (ToolCall(name='look', arguments={}, id='0'),)
    """

    name = "mistral"
    marks = ("[TOOL_CALLS]", "[ARGS]", "</s>")
    _NAMED = _Named(re.compile(r"([^\[\]{}]+)(?:\[CALL_ID\][^\[\]{}]*+)?(?:\[ARGS\])?"), "NAME[ARGS]{...}")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> Sequence[Call]:
            body = block.body.strip().removesuffix("</s>").rstrip()
            if body.startswith("["):
                return listed_calls(body, block.span, call_id)
            return one_call(block, lambda: self._NAMED.call(body, call_id))

        reading = read_blocks(text, "[TOOL_CALLS]", "", read, self._value_end)
        return Reading(reading.text.removesuffix("</s>").strip(), reading.calls)

    def _value_end(self, text: str, at: int) -> int:
        end = json_end(text, at)
        return end if end > at else self._NAMED.value_end(text, at)

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

        bare = text.find("functools[")
        if bare < 0 or 0 <= text.find("<|tool_call|>") < bare:
            return read_blocks(text, "<|tool_call|>", "<|/tool_call|>", read, json_end)
        return read_blocks(text, "functools[", "<|end|>", read_bare, lambda text, at: json_end(text, at - 1))

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
        made_up = None
        while found and len(calls) < MAX_CALLS:
            call, end = objects.call(found.start(1), str(len(calls)), in_prose=True)
            if _is_data(text, found.start(1), tools):
                found = self._START.search(text, end)
                continue
            fence = self._END.match(text, end) if found.group().startswith("```") else None
            calls.append(call)
            spans.append((found.start(), fence.end() if fence else end))
            found = self._START.search(text, spans[-1][1])
            made_up = INVENTED.search(text, spans[-1][1], found.start()) if found else None
            if made_up:
                break
        if found:
            at = (made_up or found).start()
            calls.append(invented_rest(text, at) if made_up else too_many(text, at))
            spans.append((at, len(text)))
        return Reading(outside(text, spans), tuple(calls))

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return "\n".join(as_json({"name": call.name, "arguments": dict(call.arguments)}) for call in calls)


def _is_data(text: str, at: int, tools: Sequence[ToolSpec]) -> bool:
    """Return True for a JSON object without arguments whose ``name`` is no tool's: data that an answer shows."""
    try:
        value, _ = json_at(text, at)
    except NotReadableError:
        return False
    names = [tool.name for tool in tools]
    is_named = isinstance(value, dict) and not value.keys() & {"arguments", "parameters"}
    return bool(names) and is_named and isinstance(value, dict) and value.get("name") not in names


class React:
    """``Action: NAME`` and ``Action Input: {...}`` on separate lines; the text before them is the reasoning.

    Example:
        >>> React().parse('Thought: I look.\\nAction: look\\nAction Input: {}', [])
        Reading(text='Thought: I look.', calls=(ToolCall(name='look', arguments={}, id='0'),))
    """

    name = "react"
    marks = ("Action:", "Action Input:")
    _NAMED = _Named(
        re.compile(r"((?:(?!Action(?: Input)?:).)*+)Action Input:", re.DOTALL),
        "`Action: NAME`, then `Action Input: {...}`",
    )

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> tuple[Call]:
            return one_call(block, lambda: self._NAMED.call(block.body, call_id))

        return read_blocks(text, "Action:", "", read, self._NAMED.value_end)

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

        return read_blocks(text, "<tool_call>", "</tool_call>", read, json_end)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        bodies = (as_json({"name": call.name, "arguments": dict(call.arguments)}, self.marks) for call in calls)
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


# --------------------- DeepSeek's calls between special tokens: V3 and R1 with a fenced JSON block, V3.1 with bare JSON

_SEP = "<｜tool▁sep｜>"


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
    _NAMED = _Named(
        re.compile(rf"\s*+(?:function{_SEP}([^\n`]*)\n?```(?:json)?|([^\n<]{{0,200}}+){_SEP})"),
        f"NAME{_SEP}{{...}}",
        "```",
    )

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> tuple[Call]:
            return one_call(block, lambda: self._NAMED.call(block.body, call_id))

        reading = read_blocks(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", read, self._NAMED.value_end)
        said = reading.text.replace("<｜tool▁calls▁begin｜>", "").replace("<｜tool▁calls▁end｜>", "")
        return Reading(said.strip(), reading.calls)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        bodies = []
        for call in calls:
            written = as_json(dict(call.arguments), self.marks)
            bodies.append(f"<｜tool▁call▁begin｜>function{_SEP}{call.name}\n```json\n{written}\n```<｜tool▁call▁end｜>")
        return "<｜tool▁calls▁begin｜>" + "\n".join(bodies) + "<｜tool▁calls▁end｜>"
