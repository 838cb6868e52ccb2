"""Protection against control tokens in text from environments.

A tokenizer reads ``<|im_end|>`` in a web page as the token that ends a turn, so the page could continue as the
assistant or the system. Before a conversation is rendered, such texts from environments, tools and users are therefore
replaced by placeholders. When the rendered text is encoded, a placeholder becomes the ordinary tokens of its text.
Control texts of the template stay control tokens, and sampled tokens do not change. An assistant may quote such a page,
so its messages keep only the marks that thinking and calls need.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from agentgym.types import ToolSpec

_OPEN = "\U000f0000"
"""First character of a placeholder. The second one, from a private-use plane, encodes the replaced text."""
_FIRST = 0xF0001
INSIDE = "\n"
"""End of the text before a piece that continues ordinary text."""
_CONTROL = re.compile(r"[<\[].*[>\]]", re.DOTALL)
_HTML = re.compile(
    r"</?(?:a|b|bbox|blockquote|body|caption|code|div|em|footer|h[1-6]|html|i|iframe|img|li|s|span|strong|sub|sup|table"
    r"|tbody|td|tfoot|th|thead|tr|u|ul)>"
)
"""Tags of HTML, which Gemma has tokens for. They are contents, and control nothing."""

_KNOWN = (
    r"<[|｜][^<>|｜\s]{1,40}[|｜]>",  # <|im_end|>, <|eot_id|>, DeepSeek's
    r"</?(?:s|bos|eos|start_of_turn|end_of_turn|start_of_image|think|tool_call|tool_calls|tool_response|tools)>",
    r"\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK)\]",
)
KNOWN_CONTROL_TEXTS = re.compile("|".join(_KNOWN))
"""Control texts of all known families, for use without a tokenizer."""

Encode = Callable[[str, str], Sequence[int]]
"""A function from a text and an end of the text before it, which is empty at the start, to token ids."""


def known_control_text(text: str) -> str:
    """Return the first control text of any known family in a text, or an empty text if there is none.

    Example:
        >>> known_control_text("bye<|im_end|>")
        '<|im_end|>'
    """
    found = KNOWN_CONTROL_TEXTS.search(text)
    return found.group() if found else ""


def control_texts(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts that a tokenizer encodes as a single control token.

    These are its special tokens, and added tokens that look like marks, whether its chat template names them
    (``<tool_call>``) or not (``<think>`` in templates of models that do not think). Tags of HTML are not among them,
    unless the template names them.
    """
    template = str(tokenizer.chat_template)
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    texts = set(getattr(tokenizer, "all_special_tokens", ()))
    for token in added:
        text = str(token.content)
        is_mark = _CONTROL.fullmatch(text) is not None and (text in template or not _HTML.fullmatch(text))
        if token.special or is_mark:
            texts.add(text)
    return tuple(sorted(text for text in texts if text.strip()))


def _any_of(texts: Iterable[str]) -> str:
    """Return a pattern that matches the longest of several texts.

    The pattern shares common prefixes, so that a thousand texts cost little more than one. Separate alternatives would
    take seconds on a long page.
    """
    tails: dict[str, list[str]] = {}
    ends_here = False
    for text in texts:
        if text:
            tails.setdefault(text[0], []).append(text[1:])
        else:
            ends_here = True
    branches = [re.escape(first) + _any_of(rest) for first, rest in sorted(tails.items())]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)}){'?' if ends_here else ''}"


class ContentGuard:
    """A converter that replaces control texts with placeholders, and encodes placeholders as ordinary tokens.

    Args:
        texts: the control texts.
        others: further texts that must not come from outside, such as the renderer's own marks.

    Example:
        >>> guard = ContentGuard(["<|im_end|>"])
        >>> hidden = guard.hidden("bye<|im_end|>")
        >>> [text for text, is_outside in guard.pieces("<|im_end|>" + hidden) if is_outside]
        ['<|im_end|>']
    """

    def __init__(self, texts: Sequence[str], others: Sequence[str] = ()) -> None:
        self._texts, self._others = (_OPEN, *others, *texts), frozenset(others)
        self._number = {text: number for number, text in enumerate(self._texts)}
        self._split = re.compile(f"({'|'.join(map(re.escape, others))})" if others else r"(?!)")
        self._found = re.compile(_any_of(self._texts))
        self.allow(())
        self._clean_tools: tuple[ToolSpec, ...] = ()
        self._stand_in = re.compile(f"{_OPEN}([{chr(_FIRST)}-{chr(_FIRST + len(self._texts) - 1)}])")

    def hidden(self, text: str) -> str:
        """Return a text from outside with its control texts replaced by placeholders."""
        return self._found.sub(self._placeholder, text)

    def found(self, text: str) -> frozenset[str]:
        """Return the control texts in a text."""
        return frozenset(self._found.findall(text))

    def first(self, text: str) -> str:
        """Return the control text that a text begins with after white space, or an empty text."""
        found = self._found.match(text.lstrip())
        return found.group() if found else ""

    def allow(self, marks: Iterable[str]) -> None:
        """Set the control texts that messages of the assistant keep; the renderer's own marks stay, too."""
        kept = self._others.union(marks)
        self._found_in_said = re.compile(_any_of(text for text in self._texts if text not in kept))

    def hidden_said(self, text: str) -> str:
        """Return a text of the assistant with placeholders for all control texts but the allowed ones."""
        return self._found_in_said.sub(self._placeholder, text)

    def shown(self, text: str) -> str:
        """Return a text with the control texts that its placeholders replaced."""
        return "".join(piece for piece, _ in self.pieces(text))

    def hidden_call(self, value: object) -> object:
        """Return the arguments of a call with placeholders; the renderer's own marks stay."""
        if isinstance(value, str):
            return "".join(
                self.hidden(piece) if piece not in self._others else piece for piece in self._split.split(value)
            )
        if isinstance(value, dict):
            return {self.hidden_call(key): self.hidden_call(one) for key, one in value.items()}
        return [self.hidden_call(one) for one in value] if isinstance(value, list | tuple) else value

    def hidden_tools(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Return tools with placeholders in descriptions and schemas."""
        if tuple(tools) == self._clean_tools:
            return tools
        if not any(self._found.search(json.dumps(tool.as_function(), ensure_ascii=False)) for tool in tools):
            self._clean_tools = tuple(tools)
            return tools
        return tuple(
            replace(
                tool,
                name=self.hidden(tool.name),
                description=self.hidden(tool.description),
                parameters=self._hidden_json(tool.parameters),
            )
            for tool in tools
        )

    def pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the pieces of a rendered text, with True for those that a placeholder replaced."""
        at = 0
        for found in self._stand_in.finditer(text):
            if found.start() > at:
                yield text[at : found.start()], False
            yield self._texts[ord(found.group(1)) - _FIRST], True
            at = found.end()
        if at < len(text):
            yield text[at:], False

    def encoded(self, text: str, encode: Encode, before: str = "") -> tuple[int, ...]:
        """Encode a rendered text to token ids.

        Args:
            before: an end of the text before it; empty at the start of a conversation.
        """
        if _OPEN not in text:
            return tuple(encode(text, before))
        ids: list[int] = []
        for piece, is_outside in self.pieces(text):
            ids += self._plainly(piece, encode, before) if is_outside else encode(piece, before)
            before = INSIDE if is_outside else self.end_of(piece)
        return tuple(ids)

    def end_of(self, text: str) -> str:
        """Return the control text that a text ends with, or :data:`INSIDE`."""
        return max((one for one in self._texts if text.endswith(one)), key=len, default=INSIDE)

    def _placeholder(self, found: re.Match[str]) -> str:
        return _OPEN + chr(_FIRST + self._number[found.group()])

    def _plainly(self, text: str, encode: Encode, before: str) -> list[int]:
        """Encode a control text in two parts, or in more if a part is itself a control text."""
        ids = list(encode(text[:1], before))
        rest = text[1:]
        return ids + (self._plainly(rest, encode, INSIDE) if self._found.search(rest) else list(encode(rest, INSIDE)))

    def _hidden_json(self, value: object) -> Any:
        if isinstance(value, str):
            return self.hidden(value)
        if isinstance(value, dict):
            return {self.hidden(key): self._hidden_json(one) for key, one in value.items()}
        return [self._hidden_json(one) for one in value] if isinstance(value, list | tuple) else value
