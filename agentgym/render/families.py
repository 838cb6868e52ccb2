"""Model families: the format of their calls and thinking, and the marks that identify their chat templates.

The table has one row per family. It does not say what a template can render (tools, tool results, several calls in a
message); :mod:`agentgym.render.template` finds that out by rendering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

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


FAMILIES: tuple[Family, ...] = (
    # The first row whose marks are in a template is its family, so more specific rows come first.
    Family(name="gpt-oss", models="gpt-oss", format="harmony", marks=("<|channel|>", "<|return|>"), think=None,
           thinking_key="thinking", takes_raw=False, ends=("<|call|>", "<|return|>")),
    Family(name="gemma4", models="Gemma 4", format="gemma4", marks=("<|tool_call>call:",),
           think=("<|channel>thought\n", "<channel|>"), ends=("<|tool_response>",)),
    Family(name="glm4", models="GLM 4.5 to 4.7", format="glm", marks=("<arg_key>", "<arg_value>"),
           ends=("<|observation|>", "<|user|>")),
    Family(name="qwen3.5", models="Qwen3-Coder, Qwen3.5, Qwen3.6, Nemotron 3", format="qwen_xml",
           marks=("<function=", "<parameter=")),
    Family(name="deepseek", models="DeepSeek V3, V3.1, R1 and its distillations", format="deepseek",
           marks=("<｜tool▁call▁begin｜>",), ends=("<｜end▁of▁sentence｜>",)),
    Family(name="mistral", models="Mistral, Ministral, Mistral Nemo", format="mistral", marks=("[TOOL_CALLS]",),
           think=("[THINK]", "[/THINK]")),
    Family(name="lfm2", models="LFM2", format="lfm2", marks=("<|tool_list_start|>",), thinking_key="thinking"),
    Family(name="lfm2.5", models="LFM2.5", format="lfm2", marks=("<|tool_call_start|>",), thinking_key="thinking"),
    Family(name="phi4", models="Phi-4-mini", format="phi", marks=("<|tool|>",)),
    Family(name="hermes", models="Qwen2.5, Qwen3, Hermes 2 and 3, SmolLM3", format="hermes",
           marks=("<tool_call>",)),
    Family(name="llama3", models="Llama 3, 3.1, 3.2, 3.3", format="llama_json", marks=("<|start_header_id|>",),
           think=None, ends=("<|eom_id|>", "<|eot_id|>")),
    Family(name="llama4", models="Llama 4", format="pythonic", marks=("<|header_start|>",), think=None,
           ends=("<|eom|>", "<|eot|>")),
    Family(name="gemma3", models="Gemma 1 to 3", format="tool_code", marks=("<start_of_turn>",), think=None),
    Family(name="phi3", models="Phi-3, Phi-3.5", format="json", marks=("<|end|>", "<|assistant|>"), think=None),
    Family(name="cohere", models="Command R and A, Aya", format="json", marks=("<|START_OF_TURN_TOKEN|>",), think=None),
    Family(name="vision", models="LLaVA-NeXT, Idefics 3, SmolVLM", format="json", marks=("<image>",), think=None),
    Family(name="chatml", models="SmolLM, SmolLM2, other ChatML models without tools", format="hermes",
           marks=("<|im_start|>",)),
)  # fmt: skip


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
        UsageError: the template is unknown and no format is named.
    """
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
