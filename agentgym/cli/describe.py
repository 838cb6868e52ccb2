"""``agentgym describe``: show an environment's tools, arguments, splits and first observation."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from agentgym.cli.env_args import EnvArgument, KwargsArgument, parse_pairs
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.docstrings import split_docstring
from agentgym.env.arguments import plain_arguments
from agentgym.errors import UsageError
from agentgym.json_schema.reading import described, properties, required, resolved
from agentgym.registry import creator_of, find, make, parameters_of
from agentgym.tool import usage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentgym.env.env import Env
    from agentgym.registry import EnvEntry


def describe(env: EnvArgument, kwargs: KwargsArgument = None, as_json: JsonFlag = False) -> None:
    """Describe an environment: tools, arguments, splits, limits, and the first observation."""
    with output(as_json) as out:
        entry = find(env)
        arguments = parse_pairs(kwargs or ())
        try:
            with contextlib.closing(make(entry.id, **arguments)) as made:
                value = _description(entry, made)
        except UsageError:
            if not arguments and not as_json and entry.is_available:
                _print_without_data(out, entry)
            raise
        out.result(value)
        if not as_json:
            _print(out, value)


def _description(entry: EnvEntry, env: Env) -> dict[str, object]:
    observation, info = env.reset(options={"task": 0})  # the task with which agentgym play begins, too
    return {
        "id": entry.id,
        "version": entry.version,
        "summary": entry.summary,
        "extra": entry.extra,
        "available": not entry.lacks(),
        "docstring": inspect.getdoc(type(env)) or "",
        "parameters": _parameters(entry),
        "max_turns": env.max_turns,
        "splits": _split_sizes(env),
        "tools": [
            {
                "name": spec.name,
                "usage": usage(spec),
                "description": spec.description,
                "parameters": dict(spec.parameters),
                "timeout_s": spec.timeout_s,
            }
            for spec in env.tools
        ],
        "first_task": info["task_id"],
        "first_observation": "\n".join(message.text for message in observation),
        "admissible_actions": list(env.admissible_actions()),
    }


def _print_without_data(out: Output, entry: EnvEntry) -> None:
    """Print what is known of an environment that cannot be made without arguments or data."""
    docstring = inspect.getdoc(creator_of(entry)) or ""
    about, facts = _heading(entry.id, entry.summary, docstring)
    facts.add_row("[bold]not shown[/]", "tools, tasks and the first observation; the environment needs data for them")
    out.page(*about, facts, *_arguments(_parameters(entry), docstring), "")


def _parameters(entry: EnvEntry) -> list[dict[str, object]]:
    rows: list[dict[str, Any]] = []
    for name, parameter in (parameters_of(entry) or {}).items():
        is_required = parameter.default is inspect.Parameter.empty
        is_typed = parameter.annotation is not inspect.Parameter.empty
        rows.append(
            {
                "name": name,
                "type": _type_name(parameter.annotation) if is_typed else "any",
                "required": is_required,
                "default": None if is_required else _default_text(parameter.default),
            }
        )
    return rows


def _type_name(annotation: object) -> str:
    # with postponed annotations, an annotation is text already
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return " or ".join(repr(member.value) for member in annotation)
    if isinstance(annotation, str) or not inspect.isclass(annotation) or annotation.__module__ == "builtins":
        return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return annotation.__name__  # the module of a user's file has a name of agentgym's making


def _default_text(default: object) -> str:
    """Return a default as one writes it after the argument's name: a date, a duration or an enumeration as text."""
    if default is None or isinstance(default, str | bytes | int | float | list | tuple | dict):
        return repr(default)
    try:
        return repr(plain_arguments("", {"default": default})["default"])
    except UsageError:
        return repr(default)


def _split_sizes(env: Env) -> dict[str, int]:
    from agentgym.env.tasks import SPLITS

    sizes: dict[str, int] = {}
    for split in SPLITS:
        try:
            sizes[split] = len(env.tasks(split))
        except UsageError:  # the environment has no such split, or its data is missing
            continue
    return sizes


def _print(out: Output, value: dict[str, Any]) -> None:
    from rich.panel import Panel

    told = sections(value["docstring"])
    shown, facts = _heading(value["id"], value["summary"], value["docstring"])
    facts.add_row("[bold]turns[/]", f"at most {value['max_turns']}" if value["max_turns"] else "no limit")
    splits = ", ".join(f"{name} {size:,}" for name, size in value["splits"].items())
    facts.add_row("[bold]tasks[/]", splits or "none")
    shown += [facts, *_arguments(value["parameters"], value["docstring"])]
    for tool in value["tools"]:
        shown.append(f"\n[bold]tool[/] [green]{escape(tool['usage'])}[/]")
        lines = [*paragraphs(tool["description"]), *schema_lines(tool["parameters"])]
        shown += [Padding(escape(line), (0, 0, 0, 2)) for line in lines]
    example = told.get("Example", told.get("Examples", ""))
    if example:
        shown += ["\n[bold]example[/]", Padding(escape(example), (0, 0, 0, 2))]
    shown.append("")
    shown.append(
        Panel(
            escape(value["first_observation"]),
            title=f"the first thing it says (task {escape(value['first_task'])}, where agentgym play begins)",
            title_align="left",
        )
    )
    if actions := value["admissible_actions"]:
        more = f"\n… and {len(actions) - 12} more" if len(actions) > 12 else ""
        shown.append(Panel(escape("\n".join(actions[:12]) + more), title="possible actions there", title_align="left"))
    out.page(*shown)


def _heading(env_id: str, summary: str, docstring: str) -> tuple[list[RenderableType], Table]:
    """Return an environment's name and text, and an empty table for its facts."""
    shown: list[RenderableType] = [f"[bold cyan]{env_id}[/]  {escape(summary)}\n"]
    first, *about = [*paragraphs(sections(docstring)[""]), ""]
    if first.rstrip(".") != summary.rstrip("."):
        about.insert(0, first)
    shown += [Padding(escape(text), (0, 0, 1, 2)) for text in about if text]
    return shown, Table(box=None, pad_edge=False, show_header=False)


def _arguments(parameters: list[dict[str, Any]], docstring: str) -> list[RenderableType]:
    """Return a line for each argument, followed by its description from the class docstring."""
    _, meanings = split_docstring(inspect.cleandoc(docstring), [row["name"] for row in parameters])
    shown: list[RenderableType] = ["\n[bold]arguments[/]"] if parameters else []
    for row in parameters:
        default = "" if row["required"] else f" = {row['default']}"
        shown.append(Padding(f"[green]{escape(row['name'])}[/]: {escape(row['type'] + default)}", (0, 0, 0, 2)))
        if row["name"] in meanings:
            shown.append(Padding(escape(unmarked(meanings[row["name"]])), (0, 0, 0, 6)))
    return shown


# ------------------------------------------------- docstrings and JSON schemas as plain text for a terminal

_SECTION = re.compile(r"^(Args|Arguments|Attributes|Example|Examples|Raises|Returns|Yields):$", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")
_LITERAL = re.compile(r"``(.+?)``|`(.+?)`_?", re.DOTALL)


def unmarked(text: str) -> str:
    """Return a text without reStructuredText markup.

    Example:
        >>> unmarked("``tools`` of :class:`~agentgym.env.Env`")
        'tools of Env'
    """
    return _LITERAL.sub(lambda found: found[1] or found[2], _ROLE.sub(r"\1", text))


def sections(docstring: str) -> dict[str, str]:
    """Return the sections of a docstring by title. The text before the first section has an empty title.

    Example:
        >>> sections("Count.\\n\\nArgs:\\n    by: step.")
        {'': 'Count.', 'Args': 'by: step.'}
    """
    parts = _SECTION.split(inspect.cleandoc(docstring))
    titled = zip(["", *parts[1::2]], parts[::2], strict=True)
    return {title: inspect.cleandoc(body.strip("\n")).strip() for title, body in titled}


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, each as one line without markup."""
    return [unmarked(" ".join(part.split())) for part in re.split(r"\n\s*\n", text) if part.strip()]


def schema_lines(schema: Mapping[str, Any]) -> list[str]:
    """Return one line per parameter of a tool: name, type, description.

    Example:
        >>> schema_lines({"properties": {"way": {"enum": ["up", "down"], "description": "Where to."}}})
        ['way (up or down, optional): Where to.']
    """
    needed = required(schema, schema)
    lines = []
    for name, part in properties(schema, schema).items():
        found = resolved(part, schema)
        kind = described(part, schema, has_values=True) + ("" if name in needed else ", optional")
        if found.get("default") is not None:
            kind += f", default {found['default']}"
        meaning = f": {found['description']}" if found.get("description") else ""
        lines.append(f"{name} ({kind}){meaning}")
    return lines
