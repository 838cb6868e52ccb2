"""The household's commands, as ALFWorld's text grammar and as tools.

One table declares both, so that every environment with this grammar offers the same tools. A :class:`Command` is the
common form. :func:`parse_command` and :func:`format_command` convert from and to text, :func:`command_of` and
:func:`call_of` from and to tool calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from agentgym.envs.household.vocabulary import COMMANDS
from agentgym.errors import ToolError
from agentgym.tool import unknown_tool, usage_for
from agentgym.types import ToolCall, ToolSpec


class Command(NamedTuple):
    """A command: the tool's name and up to two arguments.

    Example:
        >>> parse_command("take mug 1 from desk 2")
        Command(name='take', first='mug 1', second='desk 2')
    """

    name: str
    first: str = ""
    second: str = ""


@dataclass(frozen=True, slots=True)
class _Form:
    """The syntax of a command: ``verb first separator second``."""

    name: str
    verb: str
    description: str
    first: str = ""
    separator: str = ""
    second: str = ""

    def spec(self) -> ToolSpec:
        properties = {name: {"type": "string", "description": _ARGUMENTS[name]} for name in self.parameters}
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        return ToolSpec(self.name, self.description, schema)

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name in (self.first, self.second) if name)


_ARGUMENTS: Mapping[str, str] = COMMANDS["arguments"]
_FORMS: tuple[_Form, ...] = tuple(_Form(*words) for words in COMMANDS["forms"])
_HELP = _Form("help", "help", "List the commands.")
_FORM_OF: Mapping[str, _Form] = {form.name: form for form in (*_FORMS, _HELP)}

TOOLS: Final[tuple[ToolSpec, ...]] = tuple(form.spec() for form in _FORMS)
"""The tools of the household; ``help`` exists only as a text command, since tools have descriptions."""

_SPEC_OF: Mapping[str, ToolSpec] = {spec.name: spec for spec in TOOLS}
_PARAMETERS_OF: Mapping[str, tuple[str, ...]] = {form.name: form.parameters for form in _FORMS}
_BY_FIRST_WORD: Mapping[str, tuple[_Form, tuple[str, ...]]] = {
    "go": (_FORM_OF["go_to"], ()),
    **{form.verb: (form, (form.separator,) if form.separator else ()) for form in (*_FORMS[1:], _HELP)},
    "put": (_FORM_OF["move"], ("in/on", "in", "on")),
}


def parse_command(text: str) -> Command | None:
    """Parse a line of the text grammar. Return None if it is not a command.

    The number of spaces does not matter; case does, as in ALFWorld. ``put X in/on Y`` (also ``in``, ``on``) means
    ``move X to Y``, as in earlier releases of ALFWorld.

    Example:
        >>> parse_command("put mug 1 in/on shelf 3")
        Command(name='move', first='mug 1', second='shelf 3')
        >>> parse_command("go to  fridge 1")
        Command(name='go_to', first='fridge 1', second='')
        >>> parse_command("dance") is None
        True
    """
    words = text.split()
    found = _BY_FIRST_WORD.get(words[0]) if words else None
    if found is None:
        return None
    form, separators = found
    rest = words[1:]
    if form.name == "go_to":
        if rest[:1] != ["to"]:
            return None
        rest = rest[1:]
    if not separators:
        return Command(form.name, " ".join(rest)) if bool(rest) == bool(form.first) else None
    for separator in separators:
        if separator in rest:
            at = rest.index(separator)
            first, second = rest[:at], rest[at + 1 :]
            return Command(form.name, " ".join(first), " ".join(second)) if first and second else None
    return None


def format_command(command: Command) -> str:
    """Format a command in the text grammar.

    Example:
        >>> format_command(Command("heat", "egg 1", "microwave 1"))
        'heat egg 1 with microwave 1'
    """
    name, first, second = command
    form = _FORM_OF[name]
    if second:
        return f"{form.verb} {first} {form.separator} {second}"
    return f"{form.verb} {first}" if first else form.verb


def command_of(call: ToolCall) -> Command:
    """Convert a tool call to a command.

    Raises:
        ToolError: of type ``unknown_tool``, or ``invalid_arguments`` with the usage.

    Example:
        >>> command_of(ToolCall("use", {"object": "desklamp 1"}))
        Command(name='use', first='desklamp 1', second='')
    """
    parameters = _PARAMETERS_OF.get(call.name)
    if parameters is None:
        raise unknown_tool(call.name, list(_SPEC_OF))
    arguments = call.arguments
    if len(arguments) == len(parameters):
        values = [arguments.get(name) for name in parameters]
        if all(isinstance(value, str) and value for value in values):
            return Command(call.name, *map(str, values))
    raise ToolError(f"{_problem(call, parameters)}. {usage_for(_SPEC_OF[call.name], arguments)}", "invalid_arguments")


def call_of(command: Command, call_id: str = "") -> ToolCall:
    """Convert a command to a tool call.

    Example:
        >>> call_of(Command("go_to", "bed 1"))
        ToolCall(name='go_to', arguments={'receptacle': 'bed 1'}, id='')
    """
    form = _FORM_OF[command.name]
    return ToolCall(command.name, dict(zip(form.parameters, command[1:], strict=False)), call_id)


def _problem(call: ToolCall, parameters: tuple[str, ...]) -> str:
    missing = [name for name in parameters if name not in call.arguments]
    if missing:
        return f"missing {', '.join(missing)}"
    unknown = [str(name) for name in call.arguments if name not in parameters]
    if unknown:
        return f"unknown {', '.join(unknown)}"
    wrong = [name for name in parameters if not isinstance(call.arguments[name], str) or not call.arguments[name]]
    return f"{', '.join(wrong)} must be text such as 'fridge 1'"
