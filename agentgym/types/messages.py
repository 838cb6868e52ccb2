"""Tasks, messages and tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agentgym.canonical import digest
from agentgym.errors import UsageError

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A decoded JSON value; narrow it with ``isinstance`` before use."""
JsonObject: TypeAlias = "Mapping[str, Json]"
JsonSchema: TypeAlias = Mapping[str, Any]
"""A JSON schema of a tool's arguments, or of one argument."""

# --------------------------------------------------------------------------------------------------------- tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem that an environment can be reset to.

    Example:
        >>> task = Task(id="train-7", split="train", seed=7, data={"goal": "heat the mug"})
        >>> len(task.content_hash)
        32
    """

    id: str
    split: str
    seed: int
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content_hash(self) -> str:
        """128-bit hex digest of the task's seed and data. It does not depend on the id or the split."""
        return digest({"seed": self.seed, "data": dict(self.data)})

    @property
    def answers(self) -> tuple[str, ...]:
        """Reference answers, ``data["answers"]``, which information-gain credit scores; empty if there are none.

        Example:
            >>> Task(id="q1", split="train", seed=0, data={"answers": ["Paris"]}).answers
            ('Paris',)

        Raises:
            UsageError: an answer is no text.
        """
        given = self.data.get("answers", ())
        answers = tuple(given) if isinstance(given, list | tuple) else (given,)
        if wrong := [answer for answer in answers if not isinstance(answer, str)]:
            raise UsageError(f"task {self.id!r}: data['answers'] has {wrong[0]!r}, expected texts, as in ['8']")
        return tuple(answer for answer in answers if answer.strip())


# ------------------------------------------------------------------------------------------ messages and tool calls

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text part of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image part of a message: PNG bytes in base64."""

    png_base64: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A well-formed tool call.

    Example:
        >>> ToolCall("go_to", {"receptacle": "fridge 1"}).name
        'go_to'
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that could not be parsed. The other calls of the turn still run.

    ``span`` is the half-open character range in the completion's text.

    Example:
        >>> MalformedCall((0, 6), "expected a tool name", "go to?").reason
        'expected a tool name'
    """

    span: tuple[int, int]
    reason: str
    text: str


Call = ToolCall | MalformedCall


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of one tool call. ``error_type`` is set if and only if the policy sees an error."""

    content: str
    name: str = ""
    call_id: str = ""
    error_type: str | None = None
    box: tuple[int, int, int, int] | None = None
    """Area of the previous screenshot on which the call acted: left, top, width, height in pixels. Viewers show it."""
    images: tuple[ImagePart, ...] = ()
    """Images that the tool returned, which the tool message will contain."""

    @property
    def is_error(self) -> bool:
        """True if the policy sees an error."""
        return self.error_type is not None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it: name, description, and a JSON schema of the arguments.

    Example:
        >>> spec = ToolSpec("look", "Look around.", {"type": "object", "properties": {}})
        >>> spec.as_function()["function"]["name"]
        'look'
    """

    name: str
    description: str
    parameters: JsonSchema
    is_parallel_safe: bool = False
    timeout_s: float | None = None

    def as_function(self) -> dict[str, Any]:
        """The function schema that chat templates and OpenAI-compatible servers take."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    An environment writes ``user`` and ``tool`` messages; a policy writes ``assistant`` messages. The ``content`` of an
    ``assistant`` message is the sampled text; ``thinking``, ``calls`` and ``answer`` are parsed from it.

    Example:
        >>> Message("user", "You are in the middle of a room.").text
        'You are in the middle of a room.'
    """

    role: Role
    content: str | tuple[TextPart | ImagePart, ...] = ""
    calls: tuple[Call, ...] = ()
    result: ToolResult | None = None
    thinking: str = ""
    """Thinking before the answer."""
    answer: str | None = None
    """``content`` without thinking and calls; None if it is all of ``content``."""

    @property
    def text(self) -> str:
        """Text of the message without thinking, calls and images."""
        if self.answer is not None:
            return self.answer
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    def __str__(self) -> str:
        return self.text


Observation = tuple[Message, ...]
"""An environment's messages at one time: zero or more."""
