"""Calls as tags around unquoted values: Qwen3-Coder, Qwen3.5 and Nemotron 3 (``qwen_xml``), GLM 4.x (``glm``).

Values carry no types, so the tool's schema decides the type. A value ends at its closing tag, so text that contains
this tag cannot be written. The models' own parsers have the same limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentgym.render.formats.bare_values import BareValues
from agentgym.render.formats.blocks import Block, blocks, one_call, read_blocks
from agentgym.render.formats.reading import NotReadableError, Reading, check_value
from agentgym.types import Call, ToolCall, ToolSpec


class QwenXml:
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``.

    Example:
        >>> text = "<tool_call>\\n<function=add>\\n<parameter=a>\\n1\\n</parameter>\\n</function>\\n</tool_call>"
        >>> QwenXml().parse(text, []).calls
        (ToolCall(name='add', arguments={'a': 1}, id='0'),)
    """

    name = "qwen_xml"
    marks = ()

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> tuple[Call]:
            return one_call(block, lambda: _function(block.body, call_id, tools))

        bare = text.find("<function=")
        if bare < 0 or 0 <= text.find("<tool_call>") < bare:
            return read_blocks(text, "<tool_call>", "</tool_call>", read)

        def read_bare(block: Block, call_id: str) -> tuple[Call]:
            return one_call(block, lambda: _function(f"<function={block.body}", call_id, tools))

        return read_blocks(text, "<function=", "</function>", read_bare)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        written = []
        for call in calls:
            bare = BareValues(call.name, tools)
            values = "".join(
                f"<parameter={key}>\n{bare.written(key, value)}\n</parameter>\n"
                for key, value in call.arguments.items()
            )
            written.append(f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>")
        return "\n".join(written)


class Glm:
    """``<tool_call>NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value></tool_call>``.

    Example:
        >>> text = "<tool_call>add\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>\\n</tool_call>"
        >>> Glm().parse(text, []).calls
        (ToolCall(name='add', arguments={'a': 1}, id='0'),)
    """

    name = "glm"
    marks = ()

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> tuple[Call]:
            return one_call(block, lambda: _glm_call(block.body, call_id, tools))

        return read_blocks(text, "<tool_call>", "</tool_call>", read)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        written = []
        for call in calls:
            lines, bare = [call.name], BareValues(call.name, tools)
            for key, value in call.arguments.items():
                lines += [f"<arg_key>{key}</arg_key>", f"<arg_value>{bare.written(key, value)}</arg_value>"]
            written.append("<tool_call>" + "\n".join(lines) + "\n</tool_call>")
        return "\n".join(written)


def _function(body: str, call_id: str, tools: Sequence[ToolSpec]) -> ToolCall:
    _, found, rest = body.partition("<function=")
    name, closed, inside = rest.partition(">")
    name = name.strip()
    if not found or not closed or not name or "\n" in name:
        raise NotReadableError("expected <function=NAME> ... </function>")
    bare = BareValues(name, tools)
    arguments = {key: bare.read(key, value) for key, value in _parameters(inside)}
    check_value(arguments)
    return ToolCall(name, arguments, call_id)


def _parameters(inside: str) -> Iterator[tuple[str, str]]:
    for block in blocks(inside, "<parameter=", "</parameter>"):
        key, closed, value = block.body.partition(">")
        if not closed or "\n" in key:
            raise NotReadableError("expected <parameter=NAME>VALUE</parameter>")
        if not block.is_closed:
            value = value.partition("</function>")[0]
        # the template writes a line break on either side of a value
        yield key.strip(), value.removeprefix("\n").removesuffix("\n")


def _glm_call(body: str, call_id: str, tools: Sequence[ToolSpec]) -> ToolCall:
    head, _, _ = body.partition("<arg_key>")
    name = head.strip()
    if not name or len(name.split()) != 1:
        raise NotReadableError("expected the name of a tool, then <arg_key> and <arg_value> pairs")
    arguments: dict[str, object] = {}
    bare = BareValues(name, tools)
    for block in blocks(body, "<arg_key>", "</arg_value>"):
        key, closed, rest = block.body.partition("</arg_key>")
        _, opened, value = rest.partition("<arg_value>")
        if not closed or not opened:
            raise NotReadableError("expected <arg_key>NAME</arg_key> <arg_value>VALUE</arg_value>")
        arguments[key.strip()] = bare.read(key.strip(), value)
    check_value(arguments)
    return ToolCall(name, arguments, call_id)
