"""Model families: the format of their calls and thinking, and the marks that identify their chat templates.

The table ``families.json`` has one row per family. It does not say what a template can render (tools, tool results,
several calls in a message); :mod:`agentgym.render.template` finds that out by rendering.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentgym.canonical import packaged
from agentgym.errors import UsageError, unknown_name
from agentgym.render.formats.gemma4 import Gemma4
from agentgym.render.formats.harmony import Harmony
from agentgym.render.formats.json_calls import DeepSeek, Hermes, Json, LlamaJson, Mistral, Phi, React
from agentgym.render.formats.plain import Compact, Text
from agentgym.render.formats.pythonic import Marked, Pythonic
from agentgym.render.formats.reading import ToolFormat
from agentgym.render.formats.xml import Glm, QwenXml

FORMATS: dict[str, ToolFormat] = {
    one.name: one
    for one in (
        Hermes(),
        QwenXml(),
        Glm(),
        LlamaJson(),
        Pythonic(),
        Marked("lfm2", "<|tool_call_start|>", "<|tool_call_end|>"),
        Marked("tool_code", "```tool_code\n", "\n```", joined=False),
        Mistral(),
        Phi(),
        Gemma4(),
        DeepSeek(),
        Harmony(),
        React(),
        Json(),
        Compact(),
        Text(),
    )
}
"""Tool-call formats by name, for the setting ``model.codec``."""

Think = tuple[str, str]
"""Opening and closing mark of thinking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The text formats of one family of models."""

    name: str
    models: str
    """Models of the family."""
    format: str
    """Name of the tool-call format."""
    marks: tuple[str, ...]
    """Texts that identify a chat template of the family, which contains all of them."""
    think: Think | None = ("<think>", "</think>")
    """Opening and closing mark of thinking; None if the tool-call format separates thinking, or there is none."""
    thinking_key: Literal["reasoning_content", "thinking"] = "reasoning_content"
    """Key of a message under which the template expects thinking."""
    takes_raw: bool = True
    """True if the template takes completions as they were sampled; False for channels, which it writes itself."""
    writes_calls: bool = True
    """True if the chat template writes calls in ``format``; False if the user has chosen another format."""
    tells_tools: bool = True
    """True if the first message describes tools that the template omits. False for templates that name their format in
    a comment, whose models learn the tools by training."""
    ends: tuple[str, ...] = ()
    """Further tokens that end an assistant message, besides the template's and the tokenizer's own."""


def _family(row: Mapping[str, Any]) -> Family:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Family(**values)


FAMILIES: tuple[Family, ...] = tuple(map(_family, packaged(__package__, "families.json")))
"""The families, from ``families.json``. The first row whose marks are all in a template is its family, so more specific
rows come first."""


def format_named(name: str) -> ToolFormat:
    """Return the tool-call format with a name.

    Raises:
        UnknownNameError: there is no such format; the message names those that exist.
    """
    if name not in FORMATS:
        raise unknown_name("tool-call format", name, [*FORMATS, "auto"])
    return FORMATS[name]


def family_of(chat_template: str) -> Family | None:
    """Return the family of a chat template, or None if it is unknown.

    A template may name its format in a comment ``{#- codec: NAME -#}``.

    Example:
        >>> family_of("{#- codec: compact -#}{{ messages }}").format
        'compact'
        >>> family_of("<|im_start|>{{ role }} ... <tool_call>").name
        'hermes'
    """
    named = re.search(r"\{#-?\s*codec:\s*(\w+)", chat_template)
    if named is not None:
        return replace(unnamed_family(named.group(1)), tells_tools=False)
    for family in FAMILIES:
        if all(mark in chat_template for mark in family.marks):
            return family
    return None


def unnamed_family(format_name: str) -> Family:
    """Return a family of which only the tool-call format is known."""
    return Family(name="other", models="any", format=format_named(format_name).name, marks=(), writes_calls=False)


def known_family(chat_template: str, codec: str) -> Family:
    """Return the family of a template; ``codec`` other than ``auto`` names the tool-call format.

    Raises:
        UsageError: the template is empty, or unknown and no format is named.
    """
    if not chat_template:
        raise UsageError(
            "the model has no chat template, so its conversations cannot be rendered; "
            "use an instruction-tuned model, or add chat_template.jinja to its folder"
        )
    family = family_of(chat_template)
    if codec != "auto":
        chosen = format_named(codec).name
        if family is None:
            return unnamed_family(chosen)
        return family if family.format == chosen else replace(family, format=chosen, writes_calls=False)
    if family is None:
        raise UsageError(
            "the model's chat template is unknown, so the format of its tool calls is too; name one: "
            f"model.codec=NAME or --codec NAME, with NAME one of {', '.join(sorted(FORMATS))}"
        )
    return family
