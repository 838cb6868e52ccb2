"""Random tool calls, and completions that hold them, from a seed."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from agentgym.render.families import FORMATS
from agentgym.types import Json, ToolCall, ToolSpec

PROPERTIES: dict[str, dict[str, Json]] = {
    "place": {"type": "string"},
    "note": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "is_new": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "options": {"type": "object"},
    "old": {"type": ["string", "null"]},
}
TOOLS = tuple(
    ToolSpec(name, "Do something.", {"type": "object", "properties": {key: PROPERTIES[key] for key in keys}})
    for name, keys in (
        ("look", ()),
        ("take_it", ("place", "count")),
        ("write", ("note", "tags", "is_new", "old")),
        ("search2", ("note", "options", "ratio", "place")),
    )
)
WORDS = ("box", "é", "日本", "😀", "it's", '"so"', "a\nb", "\\", "C:\\new", "{x}", "[1]", "(y)", "a, b", "k=v", "x: y",
         "50%", "<b>", "a < b", "&amp;", "\t", "#1", "null?", "True", "7", "-3.5", "ſ", "\u2028", "'", '"', "`", "; ",
         "fin.")  # fmt: skip
OPENS_WITH_A_CALL = ("llama_json", "pythonic", "compact", "text")
"""Formats whose completions with calls hold no text before them."""


def random_text(rng: Random) -> str:
    """Return up to eight words, in one case of fifty several hundred; never with white space at its ends."""
    many = rng.randrange(300, 600) if rng.random() < 0.02 else rng.randrange(9)
    return " ".join(rng.choice(WORDS) for _ in range(many)).strip()


def random_value(rng: Random, schema: Json, depth: int = 0) -> Json:
    """Return a value of the type that a schema gives; objects and arrays nest up to three levels."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind is None:
        kind = rng.choice(
            ("string", "integer", "number", "boolean", "null", "array", "object")[: 5 if depth > 2 else 7]
        )
    if kind == "integer":
        return rng.choice((0, 7, -12, rng.randrange(10**12)))
    if kind == "number":
        return rng.choice((0.5, -2.25, 1e-7, 3.0e20, rng.random()))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "array":
        items = schema.get("items", {}) if isinstance(schema, dict) else {}
        return [random_value(rng, items, depth + 1) for _ in range(rng.randrange(4))]
    if kind == "object":
        keys = rng.sample(("a", "b_2", "deep", "Key"), rng.randrange(4))
        return {key: random_value(rng, {}, depth + 1) for key in keys}
    return random_text(rng)


def random_calls(rng: Random, most: int = 4) -> tuple[ToolCall, ...]:
    """Return one to ``most`` calls of :data:`TOOLS`, with some of their arguments."""
    calls = []
    for number in range(rng.randrange(1, most + 1)):
        tool = rng.choice(TOOLS)
        properties = tool.parameters["properties"]
        keys = [key for key in properties if rng.random() < 0.8]
        arguments = {key: random_value(rng, properties[key]) for key in keys}
        calls.append(ToolCall(tool.name, arguments, str(number)))
    return tuple(calls)


def random_prose(rng: Random, form: str) -> str:
    """Return text before calls, which is empty for formats that have none."""
    if form in OPENS_WITH_A_CALL or rng.random() < 0.5:
        return ""
    letters = [*string.ascii_letters, " ", "é", "日", ".", ","]
    return "I " + "".join(rng.choice(letters) for _ in range(rng.randrange(60))).strip() + "."


@dataclass(frozen=True, slots=True)
class Parts:
    """Delimiters with which a format joins calls: ``opening``, the calls separated by ``between``, ``closing``."""

    opening: str
    between: str
    closing: str

    def written(self, cores: Sequence[str]) -> str:
        """Return the completion with these calls."""
        return self.opening + self.between.join(cores) + self.closing


@cache
def parts(form: str) -> Parts:
    """Return how a format joins calls, found by writing two calls alone and together.

    Example:
        >>> parts("mistral")
        Parts(opening='[TOOL_CALLS][', between=', ', closing=']')
        >>> parts("hermes")
        Parts(opening='', between='\\n', closing='')
    """
    first, second = ToolCall("look", {}), ToolCall("write", {"note": "x"})
    one, two, both = (FORMATS[form].format(calls, TOOLS) for calls in ([first], [second], [first, second]))
    head = next((at for at, (a, b) in enumerate(zip(one, both, strict=False)) if a != b), len(one))
    ends = zip(reversed(two), reversed(both), strict=False)
    tail = next((at for at, (a, b) in enumerate(ends) if a != b), len(two))
    if tail < len(two):  # opening and separator may end alike; a call begins without white space
        tail = len(two[len(two) - tail :].lstrip())
    return Parts(two[: len(two) - tail], both[head : len(both) - tail], one[head:])


def core(form: str, call: ToolCall) -> str:
    """Return the text of one call, without what :func:`parts` puts around all calls.

    Example:
        >>> core("lfm2", ToolCall("look", {"note": "x"}))
        "look(note='x')"
    """
    text, around = FORMATS[form].format([call], TOOLS), parts(form)
    return text[len(around.opening) : len(text) - len(around.closing)]
