"""``agentgym list``: list environments, suites, recipes and components."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import groupby
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from agentgym.cli.exits import mapped_errors
from agentgym.cli.grid import Grid
from agentgym.cli.output import JsonFlag, output
from agentgym.errors import UsageError
from agentgym.installation import install_command
from agentgym.plugins import Component, import_source, named_object
from agentgym.registry import entries

_TRAINS = "in the loop"
_WITH_OWN = "--credit, --columns, --strategies, --scorers, --policies, --engines, --harnesses or --recipes"
_REGISTRIES = {
    "scorer": "agentgym.scoring.component:SCORERS",
    "policy": "agentgym.evals.policies:POLICIES",
    "engine": "agentgym.trainers.engines.component:ENGINES",
    "harness": "agentgym.endpoint.harness:HARNESSES",
    "column": "agentgym.trainers.data.columns:COLUMNS",
}
"""Registries whose components a list describes by their docstrings, by family."""


def list_(  # noqa: PLR0913  (a command's options)
    own: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE.py]...", help=f"With {_WITH_OWN}: your own files, to list theirs alone."),
    ] = None,
    *,
    credit: Annotated[bool, typer.Option("--credit", help="List the components of credit and loss instead.")] = False,
    columns: Annotated[
        bool, typer.Option("--columns", help="List the columns of tokens that components of the loss read instead.")
    ] = False,
    strategies: Annotated[bool, typer.Option("--strategies", help="List the rollout strategies instead.")] = False,
    recipes: Annotated[bool, typer.Option("--recipes", help="List the recipes for `agentgym train` instead.")] = False,
    scorers: Annotated[
        bool, typer.Option("--scorers", help="List the scorers for `agentgym eval scorer.kind=NAME` instead.")
    ] = False,
    policies: Annotated[
        bool, typer.Option("--policies", help="List the policies without a model for `agentgym eval --policy` instead.")
    ] = False,
    engines: Annotated[bool, typer.Option("--engines", help="List the engines for `engine.kind` instead.")] = False,
    harnesses: Annotated[
        bool, typer.Option("--harnesses", help="List the harnesses for `harness.name` instead.")
    ] = False,
    suites: Annotated[bool, typer.Option("--suites", help="List the suites for `agentgym eval` instead.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the environments and whether they can be used here; or suites, recipes, or components."""
    families = {"scorer": scorers, "policy": policies, "engine": engines, "harness": harnesses, "column": columns}
    family = next((name for name, is_asked in families.items() if is_asked), "")
    if own:
        _load(own, is_wanted=credit or strategies or recipes or bool(family))
    if recipes:
        _list_recipes(as_json, files=bool(own))
    elif credit:
        _list_credit(as_json, files=bool(own))
    elif strategies:
        _list_strategies(as_json, files=bool(own))
    elif family:
        _list_family(family, as_json, files=bool(own))
    elif suites:
        _list_suites(as_json)
    else:
        _list_envs(as_json)


def _load(files: list[str], *, is_wanted: bool) -> None:
    """Run users' files or modules so that they register their components; ignore a name after a colon."""
    with mapped_errors():
        if not is_wanted:
            raise UsageError(f"your own files can be listed only with {_WITH_OWN}")
        for file in files:
            import_source(file if file.endswith(".py") else file.rpartition(":")[0] or file)


def _listed(found: Iterable[Component], *, files: bool) -> list[Component]:
    """Return the components, or with ``files`` those of users alone.

    Raises:
        UsageError: users have none.
    """
    listed = [c for c in found if not (files and c.module.startswith("agentgym."))]
    if files and not listed:
        raise UsageError("the files register none of these; docs/components.md shows the decorators that do")
    return listed


def _list_recipes(as_json: bool, *, files: bool) -> None:
    from agentgym.api.run_dirs import need_train_extra

    with output(as_json) as out:
        need_train_extra("listing recipes")
        from agentgym.trainers.recipes import RECIPES, describe_recipes

        names = {c.name for c in _listed(RECIPES.values(), files=files)}
        found = [one for one in describe_recipes() if one.name in names]
        out.result([{"name": one.name, "envs": one.envs, "model": one.model, "summary": one.summary} for one in found])
        table = Grid("recipe", "environment", "model", "what it trains", prose="what it trains")
        for one in found:
            table.add_row(one.name, ", ".join(one.envs), one.model, one.summary)
        out.page(table)


def _list_credit(as_json: bool, *, files: bool) -> None:
    from agentgym.credit.component import credit_table
    from agentgym.trainers.losses.component import loss_table

    titles = ("name", "class", "status", "trains", "released_code", "paper", "test", "file", "by_authors")
    with output(as_json) as out:
        found = _listed((*credit_table(), *loss_table()), files=files)
        out.result([dict(zip(titles, _component_row(c), strict=True)) for c in found])
        table = Grid("name", "status", "paper", "released code", prose="paper", optional=["released code"])
        _add_families(table, found, lambda c: (c.parity.partition(":")[0],))
        out.page(table)


def _list_strategies(as_json: bool, *, files: bool) -> None:
    from agentgym.rollout.strategies.component import strategy_table

    titles = ("name", "class", "status", "paper", "limits", "test", "file")
    with output(as_json) as out:
        found = _listed(strategy_table(), files=files)
        rows = [(c.name, c.family, c.status, c.paper, c.limits, c.test, c.file) for c in found]
        out.result([dict(zip(titles, row, strict=True)) for row in rows])
        table = Grid("name", "status", "paper", prose="paper")
        _add_families(table, found)
        out.page(table)


def _add_families(
    table: Grid, found: Iterable[Component], more: Callable[[Component], tuple[str, ...]] = lambda c: ()
) -> None:
    for family, members in groupby(found, key=lambda c: c.family):
        table.add_heading(family)
        for c in members:
            table.add_row(
                c.name,
                c.status,
                f"{c.paper}{f' ({c.limits})' if c.limits else ''}: {c.file.rpartition('/')[2]}",
                *more(c),
            )


def _list_family(family: str, as_json: bool, *, files: bool) -> None:
    from agentgym.api.run_dirs import need_train_extra

    with output(as_json) as out:
        if family == "engine":
            need_train_extra("listing engines")
        found = [
            {
                "name": c.name,
                "summary": (c.call.__doc__ or "").partition("\n")[0].replace("``", ""),
                **{name: value for name in ("unit", "phase") if (value := getattr(c, name, None))},
                "settings": [one.name for one in fields(c.options) if one.name != "kind"] if c.options else [],
                "paper": c.paper,
            }
            for c in _listed(named_object(_REGISTRIES[family]).values(), files=files)
        ]
        out.result(found)
        last = "one value per" if family == "column" else "settings"
        table = Grid(family, "what it does", last, prose="what it does")
        for one in found:
            table.add_row(str(one["name"]), str(one["summary"]), one.get("unit") or ", ".join(one["settings"]))
        out.page(table)


def _component_row(component: Component) -> tuple[str | bool, ...]:
    trains = _TRAINS + (f", {component.limits}" if component.limits else "")
    c = component
    return c.name, c.family, c.status, trains, c.parity, c.paper, c.test, c.file, c.by_authors


def _list_suites(as_json: bool) -> None:
    from agentgym.evals.suites import load_suite, suite_facts, suite_names

    with output(as_json) as out:
        facts = [suite_facts(load_suite(name)) for name in suite_names()]
        out.result(facts)
        table = Grid("suite", "what it is", "tasks", "licence", "content", "runs here", prose="what it is")
        for row in facts:
            name, num_tasks = f"{row['name']}@{row['version']}", row["num_tasks"]
            is_here = "[green]yes[/]" if row["available"] else "no"
            content = str(row["content_hash"])[:8]
            table.add_row(name, escape(row["summary"]), f"{num_tasks or '?'}", row["licence"], content, is_here)
        missing = [row for row in facts if not row["available"]]
        out.page(table, *(Text(f"\n{row['name']}: {row['reason']}\n  to mend it: {row['mend']}") for row in missing))


def _list_envs(as_json: bool) -> None:
    with output(as_json) as out:
        found = {entry: entry.lacks() for entry in entries()}
        out.result(
            [
                {
                    "id": entry.id,
                    "version": entry.version,
                    "extra": entry.extra,
                    "available": not why_not,
                    "lacks": why_not,
                    "needs": list(entry.needs),
                    "summary": entry.summary,
                }
                for entry, why_not in found.items()
            ]
        )
        table = Grid("environment", "what it is", "extra", "available", prose="what it is")
        for entry, why_not in found.items():
            is_here = "[green]yes[/]" if not entry.needs else f"with {entry.needed}"
            table.add_row(entry.id, entry.summary, entry.extra or "", "no" if why_not else is_here)
        missing = [entry for entry in found if not entry.is_available]
        extras = sorted({entry.extra or "all-cpu" for entry in missing if not entry.install})
        hints = [install_command(*extras)] if extras else []
        hints += sorted({entry.install_command for entry in missing if entry.install})
        hints += sorted({why_not for entry, why_not in found.items() if why_not and entry.is_available})
        out.page(table, *(Text(f"\nfor the others: {hint}") for hint in hints))
