"""``agentgym describe``: what an environment is, takes and says."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

from agentgym.cli.env_args import EnvArgument, KwargsArgument
from agentgym.cli.output import JsonFlag, Output, output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentgym.env.env import Env
    from agentgym.registry import EnvEntry


def describe(env: EnvArgument, kwargs: KwargsArgument = None, as_json: JsonFlag = False) -> None:
    """Say what an environment is: tools, arguments, splits, limits, and the first thing it says."""
    from agentgym.cli.env_args import open_env, parse_pairs
    from agentgym.registry import find

    with output(as_json) as out:
        entry = find(env)
        with contextlib.closing(open_env(entry, parse_pairs(kwargs or ()))) as made:
            value = _description(entry, made)
        out.result(value)
        if not as_json:
            _print(out, value)


def _description(entry: EnvEntry, env: Env) -> dict[str, object]:
    from agentgym.tool import usage

    observation, _ = env.reset(seed=0)
    return {
        "id": entry.id,
        "version": entry.version,
        "summary": entry.summary,
        "extra": entry.extra,
        "available": entry.is_available,
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
        "first_observation": "\n".join(message.text for message in observation),
        "admissible_actions": list(env.admissible_actions()),
    }


def _parameters(entry: EnvEntry) -> list[dict[str, object]]:
    from agentgym.registry import parameters_of

    rows: list[dict[str, Any]] = []
    for name, parameter in (parameters_of(entry) or {}).items():
        is_required = parameter.default is inspect.Parameter.empty
        is_typed = parameter.annotation is not inspect.Parameter.empty
        rows.append(
            {
                "name": name,
                "type": _type_name(parameter.annotation) if is_typed else "any",
                "required": is_required,
                "default": None if is_required else repr(parameter.default),
            }
        )
    return rows


def _type_name(annotation: object) -> str:
    # modules that postpone annotations have them as text already
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _split_sizes(env: Env) -> dict[str, int]:
    from agentgym.env.env import SPLITS
    from agentgym.errors import UsageError

    sizes: dict[str, int] = {}
    for split in SPLITS:
        try:
            sizes[split] = len(env.tasks(split))
        except UsageError:  # this environment has no such split, or no data for it
            continue
    return sizes


def _print(out: Output, value: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table

    from agentgym.cli.plain_words import paragraphs, schema_lines, sections

    told = sections(value["docstring"])
    shown: list[RenderableType] = [f"[bold cyan]{value['id']}[/]  {escape(value['summary'])}\n"]
    summary, *about = [*paragraphs(told[""]), ""]
    if summary.rstrip(".") != value["summary"].rstrip("."):
        about.insert(0, summary)
    shown += [Padding(escape(text), (0, 0, 1, 2)) for text in about if text]
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_row("[bold]turns[/]", f"at most {value['max_turns']}" if value["max_turns"] else "no limit")
    splits = ", ".join(f"{name} {size:,}" for name, size in value["splits"].items())
    facts.add_row("[bold]tasks[/]", splits or "none")
    shown += [facts, *_arguments(value["parameters"], told.get("Args", ""))]
    for tool in value["tools"]:
        shown.append(f"\n[bold]tool[/] [green]{escape(tool['usage'])}[/]")
        lines = [*paragraphs(tool["description"]), *schema_lines(tool["parameters"])]
        shown += [Padding(escape(line), (0, 0, 0, 2)) for line in lines]
    example = told.get("Example", told.get("Examples", ""))
    if example:
        shown += ["\n[bold]example[/]", Padding(escape(example), (0, 0, 0, 2))]
    shown.append("")
    shown.append(
        Panel(escape(value["first_observation"]), title="the first thing it says (seed 0)", title_align="left")
    )
    if actions := value["admissible_actions"]:
        more = f"\n… and {len(actions) - 12} more" if len(actions) > 12 else ""
        shown.append(Panel(escape("\n".join(actions[:12]) + more), title="possible actions there", title_align="left"))
    out.page(*shown)


def _arguments(parameters: list[dict[str, Any]], section: str) -> list[RenderableType]:
    """Return a line for each argument, and below it what its class's docstring says of it."""
    from rich.markup import escape
    from rich.padding import Padding

    from agentgym.cli.plain_words import arguments

    meanings = arguments(section)
    shown: list[RenderableType] = ["\n[bold]arguments[/]"] if parameters else []
    for row in parameters:
        default = "" if row["required"] else f" = {row['default']}"
        shown.append(Padding(f"[green]{escape(row['name'])}[/]: {escape(row['type'] + default)}", (0, 0, 0, 2)))
        if row["name"] in meanings:
            shown.append(Padding(escape(meanings[row["name"]]), (0, 0, 0, 6)))
    return shown
