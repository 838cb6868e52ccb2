"""Tools: functions whose signature and docstring give the schema by which a model's arguments are checked.

An author writes nothing but ``@tool``. Mistakes of the model (unknown tool, bad arguments) raise a typed
:class:`~agentgym.errors.ToolError`. Mistakes of the author (no docstring, no type) raise
:class:`~agentgym.errors.ToolDefinitionError` at definition.
"""

from __future__ import annotations

import base64
import difflib
import inspect
import io
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property, partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from agentgym.argument_model import ArgumentModel, named, plain_function
from agentgym.canonical import require_writable
from agentgym.docstrings import split_docstring
from agentgym.errors import EnvError, ToolDefinitionError, ToolError
from agentgym.json_schema.reading import described, properties, required
from agentgym.types import ImagePart, ToolCall, ToolResult, ToolSpec

if TYPE_CHECKING:
    import numpy as np

CONTROL_VERBS = frozenset(
    {"reset", "step", "close", "end_episode", "snapshot", "restore", "verify", "oracle", "state_key", "tasks"}
)
"""Names that no tool may have, so that an agent can neither reset nor grade its own environment."""

MAX_OUTPUT_BYTES = 16 * 1024
"""Longest tool output that a model sees, in bytes of UTF-8. Longer output is cut, and a note marks the cut."""

Function = TypeVar("Function", bound=Callable[..., object])
_MARK = "__agentgym_tool__"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Example:
        >>> @tool
        ... def add(a: int, b: int = 1) -> str:
        ...     '''Add two numbers.'''
        ...     return str(a + b)
        >>> tool_of(add).arguments(ToolCall("add", {"a": "2"}))
        {'a': 2, 'b': 1}
    """

    name: str
    function: Callable[..., Any]
    description: str
    is_parallel_safe: bool = False
    timeout_s: float | None = None
    model: ArgumentModel | None = None
    """Model of the arguments; None if another class has their schema."""
    attribute: str = ""
    """Name of the method in its class, by which a subclass overrides it; empty for a function."""

    @cached_property
    def is_async(self) -> bool:
        """True if the function is a coroutine function."""
        return inspect.iscoroutinefunction(plain_function(self.function))

    @cached_property
    def spec(self) -> ToolSpec:
        """Name, description and argument schema that the model sees."""
        return ToolSpec(self.name, self.description, self._model.schema, self.is_parallel_safe, self.timeout_s)

    @property
    def _model(self) -> ArgumentModel:
        assert self.model is not None
        return self.model

    def arguments(self, call: ToolCall) -> dict[str, Any]:
        """Return the call's arguments, checked, converted to their types and completed with defaults.

        Raises:
            ToolError: of type ``invalid_arguments``, if the arguments do not fit the schema.
        """
        from pydantic import ValidationError

        try:
            require_writable(dict(call.arguments))
            return self._model.checked(call.arguments)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(at) for at in item['loc']) or 'arguments'}: {item['msg']}" for item in error.errors()
            )
            raise ToolError(f"{problems}. {usage_for(self.spec, call.arguments)}", "invalid_arguments") from None
        except ValueError as error:
            raise ToolError(f"arguments cannot be taken: {error}", "invalid_arguments") from None

    def call(self, owner: object, arguments: Mapping[str, object]) -> Any:
        """Call the tool of an object with checked arguments, as Python calls the object's method of that name."""
        members = (vars(base)[self.attribute] for base in type(owner).__mro__ if self.attribute in vars(base))
        function = next(members, self.function)
        bind = getattr(function, "__get__", None)
        run = partial(function, owner) if bind is None else bind(owner, type(owner))
        return run(**arguments)


@overload
def tool(function: Function) -> Function: ...
@overload
def tool(*, timeout_s: float | None = None, parallel_safe: bool = False) -> Callable[[Function], Function]: ...
def tool(
    function: Function | None = None, *, timeout_s: float | None = None, parallel_safe: bool = False
) -> Function | Callable[[Function], Function]:
    """Mark a function or method as a tool.

    The tool's description is the docstring without its sections (``Args:``, ``Returns:`` ...). The parameters'
    descriptions are those of ``Field`` or ``Annotated``, or else of the docstring (Google's, NumPy's or Sphinx's form).

    Args:
        function: the function, method, ``staticmethod`` or ``classmethod`` to mark. It needs a docstring, and a type
            for every parameter.
        timeout_s: seconds after which a call counts as hung, which is an infrastructure failure.
        parallel_safe: whether several calls of one turn may run at the same time.

    Raises:
        ToolDefinitionError: the docstring or a type is missing, a type has no JSON schema, or the name is in
            :data:`CONTROL_VERBS`.
    """

    names = _names_around(sys._getframe(1))

    def mark(wrapped: Function) -> Function:
        setattr(wrapped, _MARK, _define(wrapped, timeout_s, parallel_safe, names))
        return wrapped

    return mark if function is None else mark(function)


def tool_of(function: Callable[..., Any]) -> Tool:
    """Return the :class:`Tool` of a function marked with ``@tool``."""
    return typing.cast(Tool, getattr(function, _MARK))


def tools_of(owner: type) -> dict[str, Tool]:
    """Return all tools among a class's methods, those of base classes first, in order of definition.

    A subclass overrides a tool by a method of the same parameters, with or without ``@tool``, and removes it by None.

    Raises:
        ToolDefinitionError: an override takes other parameters and is not marked, or is no method.
    """
    marked: dict[str, Tool] = {}
    for base in reversed(owner.__mro__):
        for attribute, member in vars(base).items():
            definition = _definition(member)
            if definition is not None:
                marked[attribute] = definition
    found: dict[str, Tool] = {}
    for attribute, definition in marked.items():
        effective = _effective(owner, attribute, definition)
        if effective is not None:
            found[effective.name] = effective
    return found


def _definition(member: object) -> Tool | None:
    found = getattr(member, _MARK, None) or getattr(getattr(member, "__func__", None), _MARK, None)
    return found if isinstance(found, Tool) else None


def _effective(owner: type, attribute: str, definition: Tool) -> Tool | None:
    """Return a tool with the method that Python finds by its attribute, or None if a subclass has removed it."""
    member: Any = inspect.getattr_static(owner, attribute)
    if member is None:
        return None
    if (own := _definition(member)) is not None:
        return replace(own, function=member, attribute=attribute)
    if not callable(plain_function(member)) or inspect.isclass(member):
        raise ToolDefinitionError(
            f"{owner.__name__}.{attribute} is a {type(member).__name__}, and a base class has a tool of that name; "
            "override it by a method, or remove it by None"
        )
    assert definition.model is not None
    taken = inspect.signature(plain_function(member))
    bound = [] if isinstance(member, staticmethod) else [None]
    try:
        taken.bind(*bound, **{one.name: None for one in definition.model.parameters})
    except TypeError as error:
        raise ToolDefinitionError(
            f"{named(member)} overrides a tool of other parameters ({error}); mark it with @tool, too"
        ) from None
    return replace(definition, function=member, attribute=attribute)


def usage(spec: ToolSpec, *, has_values: bool = False) -> str:
    """Return a one-line signature for error messages.

    Args:
        has_values: True to list the values of an enumeration, in place of their type.

    Example:
        >>> usage(ToolSpec("go", "", {"properties": {"to": {"type": "string"}}, "required": ["to"]}))
        'go(to: string)'
        >>> usage(ToolSpec("go", "", {"properties": {"to": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}))
        'go(to?: string or null)'
    """
    needed = required(spec.parameters, spec.parameters)
    shown = [
        f"{name}{'' if name in needed else '?'}: {described(part, spec.parameters, has_values=has_values)}"
        for name, part in properties(spec.parameters, spec.parameters).items()
    ]
    return f"{spec.name}({', '.join(shown)})"


def usage_for(spec: ToolSpec, arguments: Mapping[str, object]) -> str:
    """Return the usage of a tool after a call with wrong arguments, with a typed line if commas separated its values.

    Example:
        >>> take = ToolSpec("take", "", {"properties": {"thing": {"type": "string"}, "place": {"type": "string"}}})
        >>> usage_for(take, {"thing": "mug 1, shelf 1"})
        'Usage: take(thing?: string, place?: string). In a typed line ; separates values: take: mug 1; shelf 1'
    """
    line = f"Usage: {usage(spec)}"
    names = list(properties(spec.parameters, spec.parameters))
    texts = [value for value in arguments.values() if isinstance(value, str) and "," in value]
    if len(arguments) >= len(names) or len(texts) != 1:
        return line
    values = [part.strip() for value in arguments.values() for part in str(value).split(",")]
    return f"{line}. In a typed line ; separates values: {spec.name}: {'; '.join(values)}"


def unknown_tool(name: str, known: Sequence[str]) -> ToolError:
    """Return the error that a model sees after calling a tool that does not exist."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    suggestion = f" Did you mean {near[0]}?" if near else ""
    return ToolError(f"unknown tool {name!r}.{suggestion} Tools: {', '.join(known)}", "unknown_tool")


def cut_output(text: str, max_bytes: int = MAX_OUTPUT_BYTES) -> str:
    """Return the text, cut to ``max_bytes`` of UTF-8 with a note at the end if it is longer.

    Example:
        >>> cut_output("x" * 40, 32)
        'xxxxxxxxx\\n[cut: 40 bytes in all]'
    """
    raw = text.encode(errors="replace")  # half of a surrogate pair, which JSON can express but no tokenizer accepts
    if len(raw) <= max_bytes:
        return raw.decode()
    mark = f"\n[cut: {len(raw)} bytes in all]"
    return raw[: max(0, max_bytes - len(mark))].decode(errors="ignore") + mark


def result_of(call: ToolCall, output: object) -> ToolResult:
    """Convert a tool's return value into the result that the model sees.

    Text is unchanged. An image (:class:`~agentgym.types.ImagePart`, PNG bytes, a PIL image) becomes an image part, and
    a list of texts and images becomes text and image parts. Mappings, sequences, sets, dataclasses and pydantic models
    become JSON. Any other value becomes its ``str()``.

    Raises:
        EnvError: the value has no text form but one with a memory address.

    Example:
        >>> result_of(ToolCall("weigh"), {"grams": 12.5, "fragile": False}).content
        '{"grams":12.5,"fragile":false}'
    """
    parts = output if isinstance(output, list | tuple) and any(_is_image(item) for item in output) else (output,)
    images = tuple(_image(part) for part in parts if _is_image(part))
    text = "\n".join(_text(call.name, part) for part in parts if not _is_image(part))
    return ToolResult(cut_output(text), call.name, call.id, images=images)


def error_result(error: ToolError, name: str = "", call_id: str = "") -> ToolResult:
    """Convert a tool's error into the result that the model sees."""
    return ToolResult(cut_output(f"Error: {error}"), name, call_id, error.error_type)


def random_call(spec: ToolSpec, rng: np.random.Generator, words: Sequence[str] = ("a",)) -> ToolCall:
    """Return a call with random arguments that fit the schema. Strings come from ``enum``, or else from ``words``.

    The arguments are validated. If no draw fits the schema, as with a pattern that looks ahead, the last is returned.
    """
    from agentgym.json_schema.samples import random_arguments

    return ToolCall(spec.name, random_arguments(spec.parameters, rng, words))


# ------------------------------------------------------------------------------------------------- returned values

_PNG = b"\x89PNG\r\n\x1a\n"


def _is_image(value: object) -> bool:
    return isinstance(value, ImagePart) or (isinstance(value, bytes) and value.startswith(_PNG)) or _is_pil(value)


def _is_pil(value: object) -> bool:
    return any(base.__module__ == "PIL.Image" for base in type(value).__mro__)  # PIL is not a dependency


def _image(value: Any) -> ImagePart:
    if isinstance(value, ImagePart):
        return value
    if not isinstance(value, bytes):
        buffer = io.BytesIO()
        value.save(buffer, format="PNG")
        value = buffer.getvalue()
    return ImagePart(base64.b64encode(value).decode())


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    import numpy as np

    is_json = is_dataclass(value) or hasattr(type(value), "model_dump_json") or isinstance(value, np.ndarray)
    if not is_json and (not isinstance(value, Mapping | Sequence | Set) or isinstance(value, bytes | bytearray)):
        return _scalar_text(name, value)
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(value, inf_nan_mode="null", fallback=partial(_plain, name)).decode()
    except (PydanticSerializationError, ValueError) as error:
        raise EnvError(f"tool {name}: what it returned cannot be written as JSON: {error}") from error


def _plain(name: str, value: object) -> object:
    """Convert a value that pydantic cannot serialize into one that it can."""
    if isinstance(value, Mapping):
        return dict(value)
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return list(value) if isinstance(value, Sequence) else _scalar_text(name, value)


def _scalar_text(name: str, value: object) -> str:
    kind = type(value)
    text = str(value)
    has_address = kind.__str__ is object.__str__ and _ADDRESS.search(text)  # also of generators and functions
    if has_address or isinstance(value, bytes | bytearray):
        raise EnvError(
            f"tool {name} returned a {kind.__name__}, which has no text for a model; return text, a number, an image "
            "(ImagePart, PNG bytes, a PIL image), or a mapping, list, dataclass or pydantic model"
        )
    return text


# ------------------------------------------------------------------------------------------------------ definition


def _define(function: Any, timeout_s: float | None, parallel_safe: bool, names: Mapping[str, object]) -> Tool:
    plain = plain_function(function)
    if not inspect.isroutine(plain):
        raise ToolDefinitionError(f"@tool marks a function or a method, got {function!r}")
    name = plain.__name__
    if name in CONTROL_VERBS:
        raise ToolDefinitionError(
            f"{named(function)}: this name is reserved, since an agent must not control its own environment; "
            f"rename it (reserved: {', '.join(sorted(CONTROL_VERBS))})"
        )
    doc = inspect.getdoc(plain)
    if not doc:
        raise ToolDefinitionError(f"{named(function)} has no docstring; the model reads it as the tool's description")
    described = ArgumentModel(function, {})
    for parameter in described.parameters:
        if parameter.annotation is inspect.Parameter.empty:
            raise ToolDefinitionError(
                f"{named(function)}: parameter {parameter.name!r} has no type; the model's arguments are checked "
                f"against it, so write for example '{parameter.name}: str'"
            )
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise ToolDefinitionError(f"{named(function)}: *args and **kwargs have no schema; name each parameter")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ToolDefinitionError(f"{named(function)}: arguments are given by name; remove the / of its parameters")
    description, texts = split_docstring(doc, [parameter.name for parameter in described.parameters])
    if not description:
        raise ToolDefinitionError(f"{named(function)}: the docstring describes its parameters, and not the tool")
    model = ArgumentModel(function, texts)
    model.read_hints(names)
    return Tool(name, function, description, parallel_safe, timeout_s, model)


def _names_around(frame: FrameType) -> dict[str, object]:
    """Return the local names where a tool is defined, in a class and in the function around it."""
    outer = frame.f_back if "__qualname__" in frame.f_locals else None
    return {**(outer.f_locals if outer is not None else {}), **frame.f_locals}
