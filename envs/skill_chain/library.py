"""Skills that an agent makes: named lists of calls with parameters, and the rules that a new one must keep.

A call is a line of the compact call syntax (:mod:`agentgym.call_syntax`). ``$name`` in a value stands for a parameter;
``$$`` is a dollar sign. Parameters are filled in after a line was parsed, so no value can add a call or an argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentgym.call_syntax import format_call, parse_calls
from agentgym.canonical import read_json
from agentgym.errors import ToolError
from agentgym.json_schema.reading import choices, described, properties, required, type_names, types_of
from agentgym.settings import Count, check_ranges
from agentgym.tool import unknown_tool, usage_for
from agentgym.types import Json, JsonSchema, MalformedCall, ToolCall, ToolSpec

SAVE, USE = "save_skill", "use_skill"
"""Names of the two tools of a skill chain."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_MARK = re.compile(r"\$(?:\$|([A-Za-z][A-Za-z0-9_]*))")
_ALONE = re.compile(r"\$([A-Za-z][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a library, which also limit its length in a prompt.

    Raises:
        ConfigError: a number is not positive.
    """

    min_calls: Count = 2
    """Smallest number of calls of a skill. One call is worth a skill only if it is long, such as a program."""
    max_calls: Count = 12
    """Largest number of calls of a skill."""
    max_skills: Count = 8
    """Largest number of skills."""
    max_skill_chars: Count = 600
    """Largest number of characters of a skill, as the prompt shows it."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True)
class Skill:
    """A named list of calls with parameters.

    Example:
        >>> take = ToolSpec("take", "", {"properties": {"object": {"type": "string"}}})
        >>> skill = Skill("grab", ("what",), (ToolCall("take", {"object": "$what 1"}),))
        >>> skill.shown([take])
        'grab(what): take: $what 1'
        >>> skill.filled({"what": "mug"})
        (ToolCall(name='take', arguments={'object': 'mug 1'}, id=''),)
    """

    name: str
    parameters: tuple[str, ...]
    calls: tuple[ToolCall, ...]
    """Calls whose values may hold ``$parameter``."""
    maker: int = 0
    """Number of the task in which the skill was saved, from 0."""

    def shown(self, tools: Sequence[ToolSpec]) -> str:
        """Return the skill as one printable line."""
        line = f"{self.name}({', '.join(self.parameters)}): "
        return line + " | ".join(_one_line(format_call(call, tools)) for call in self.calls)

    def filled(self, arguments: Mapping[str, Any]) -> tuple[ToolCall, ...]:
        """Return the calls with arguments in place of the parameters.

        Raises:
            ToolError: of type ``invalid_arguments``, if an argument is missing or unknown.
        """
        missing = [name for name in self.parameters if name not in arguments]
        unknown = [name for name in arguments if name not in self.parameters]
        if missing or unknown:
            problem = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
            raise ToolError(f"{problem}. Usage: {self.name}({', '.join(self.parameters)})", "invalid_arguments")
        return tuple(
            ToolCall(call.name, {key: _filled(value, arguments) for key, value in call.arguments.items()})
            for call in self.calls
        )


def listed(library: Sequence[Skill], tools: Sequence[ToolSpec]) -> str:
    """Return the library as the prompt shows it, one line per skill.

    Example:
        >>> listed([], [])
        'Skills: none.'
    """
    if not library:
        return "Skills: none."
    return "Skills:\n" + "\n".join(skill.shown(tools) for skill in library)


def new_skill(
    name: str,
    parameters: Sequence[str],
    calls: str,
    *,
    tools: Sequence[ToolSpec],
    library: Sequence[Skill],
    limits: Limits,
) -> Skill:
    """Read and check a skill that an agent wants to save.

    Args:
        calls: one call per line.
        tools: the tools that the calls may name.
        library: the skills so far.

    Raises:
        ToolError: the skill breaks a rule; the message says which, and how to keep it.
    """
    _check_names(name, parameters, [spec.name for spec in tools], library)
    lines = [line for line in calls.split("\n") if line.strip()]
    if not limits.min_calls <= len(lines) <= limits.max_calls:
        raise _refused(f"a skill has {limits.min_calls} to {limits.max_calls} calls, one per line; got {len(lines)}")
    read = tuple(_read_call(line, number, tools) for number, line in enumerate(lines, 1))
    used = {found for call in read for value in call.arguments.values() for found in marks_in(value)}
    if undeclared := sorted(used - set(parameters)):
        raise _refused(f"${undeclared[0]} is no parameter; name it in parameters, or write $$ for a dollar sign")
    if unused := [parameter for parameter in parameters if parameter not in used]:
        raise _refused(f"the parameter {unused[0]} is in no call; write ${unused[0]} where it belongs")
    skill = Skill(name, tuple(parameters), read)
    if len(shown := skill.shown(tools)) > limits.max_skill_chars:
        raise _refused(f"a skill has at most {limits.max_skill_chars} characters, got {len(shown)}")
    if len(library) >= limits.max_skills:
        raise ToolError(f"the library is full: it holds {limits.max_skills} skills", "library_full")
    return skill


def marks_in(value: Json) -> frozenset[str]:
    """Return the names of the parameters in a value.

    Example:
        >>> sorted(marks_in(["$one and $two", {"price": "$$3"}]))
        ['one', 'two']
    """
    if isinstance(value, str):
        return frozenset(name for name in _MARK.findall(value) if name)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return frozenset(name for item in items for name in marks_in(item))


# ------------------------------------------------------------------------------------------------------------- private


def _check_names(name: str, parameters: Sequence[str], tools: Sequence[str], library: Sequence[Skill]) -> None:
    for what, given in (("name", name), *(("parameter", parameter) for parameter in parameters)):
        if not _NAME.fullmatch(given):
            raise _refused(
                f"a {what} is at most 40 letters, digits and _, and starts with a letter; got {given[:60]!r}"
            )
    if len(set(parameters)) < len(parameters):
        raise _refused("two parameters have the same name")
    if name in (SAVE, USE, *tools) or any(skill.name == name for skill in library):
        raise ToolError(f"the name {name} is taken; choose another", "name_taken")


def _read_call(line: str, number: int, tools: Sequence[ToolSpec]) -> ToolCall:
    """Read a line of a skill; values of every type may be a parameter.

    Raises:
        ToolError: the line is no call of one of the tools, or an argument does not fit.
    """
    call = parse_calls(line, [_as_text(spec) for spec in tools])[0]
    where = f"call {number}"
    if isinstance(call, MalformedCall):
        raise _refused(f"{where}: {call.reason}")
    if call.name in (SAVE, USE):
        raise _refused(f"{where}: a skill cannot call {call.name}; write out the calls of the other skill")
    spec = next((spec for spec in tools if spec.name == call.name), None)
    if spec is None:
        error = unknown_tool(call.name[:60], [spec.name for spec in tools])
        raise ToolError(f"{where}: {error}", error.error_type)
    root = spec.parameters
    fields = properties(root, root)
    missing = [key for key in required(root, root) if key not in call.arguments]
    unknown = [key for key in call.arguments if key not in fields]
    if missing or unknown:
        problem = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
        raise _refused(f"{where}: {problem}. {usage_for(spec, call.arguments)}")
    values = {}
    for key, raw in call.arguments.items():
        values[key] = _read_value(f"{where}: {key}", str(raw), fields[key], root)
    return ToolCall(call.name, values)


def _as_text(spec: ToolSpec) -> ToolSpec:
    """Return a tool whose arguments are all text, so that a line is read without decoding its values."""
    names = properties(spec.parameters, spec.parameters)
    return replace(spec, parameters={"type": "object", "properties": {name: {"type": "string"} for name in names}})


def _read_value(where: str, raw: str, schema: JsonSchema, root: JsonSchema) -> Json:
    kinds = types_of(schema, root)
    value: Json = raw
    if kinds != {"string"} and not _ALONE.fullmatch(raw):
        try:
            value = read_json(raw)
        except ValueError:
            if "string" not in kinds:
                raise _refused(f"{where} is not JSON of type {described(schema, root)}: {raw[:60]!r}") from None
        if "string" in kinds and not type_names(value) & kinds:
            value = raw
    if marks_in(value):
        return value
    plain = _filled(value, {})
    if not type_names(plain) & kinds:
        raise _refused(f"{where} must be of type {described(schema, root)}, got {raw[:60]!r}")
    if (listed := choices(schema, root)) and plain not in listed:
        raise _refused(f"{where} must be one of {', '.join(map(str, listed))}; got {raw[:60]!r}")
    return value


def _filled(value: Any, arguments: Mapping[str, Any]) -> Any:
    """Return a value with its parameters filled in. One that is a parameter alone takes the argument's type."""
    if isinstance(value, str):
        alone = _ALONE.fullmatch(value)
        return arguments[alone.group(1)] if alone else _MARK.sub(_filling(arguments), value)
    if isinstance(value, Mapping):
        return {key: _filled(item, arguments) for key, item in value.items()}
    return [_filled(item, arguments) for item in value] if isinstance(value, list) else value


def _filling(arguments: Mapping[str, Any]) -> Callable[[re.Match[str]], str]:
    def text_of(mark: re.Match[str]) -> str:
        if mark.group(1) is None:
            return "$"
        value = arguments[mark.group(1)]
        return value if isinstance(value, str) else json.dumps(value)

    return text_of


def _one_line(text: str) -> str:
    """Return a text with line breaks and control characters escaped, so that a skill stays on its line."""
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _refused(reason: str) -> ToolError:
    return ToolError(reason, "invalid_arguments")
