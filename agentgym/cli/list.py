"""``agentgym list``: which environments there are, and which components of credit and loss."""

from __future__ import annotations

from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, output


def list_(
    credit: Annotated[bool, typer.Option("--credit", help="List the components of credit and loss instead.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the environments, and whether they can be used here; or the components of credit and loss."""
    if credit:
        _list_credit(as_json)
    else:
        _list_envs(as_json)


def _list_credit(as_json: bool) -> None:
    from rich.table import Table

    from agentgym.credit.stages import credit_table
    from agentgym.trainers.losses.table import loss_table

    titles = ("name", "class", "source", "status", "golden_test")
    with output(as_json) as out:
        rows = (*credit_table(), *loss_table())
        out.result([dict(zip(titles, row, strict=True)) for row in rows])
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in titles:
            table.add_column(title.replace("_", " "), style="bold cyan" if title == "name" else None)
        for row in rows:
            table.add_row(*row)
        out.console.print(table)


def _list_envs(as_json: bool) -> None:
    from rich.table import Table

    from agentgym.registry import entries

    with output(as_json) as out:
        found = entries()
        out.result(
            [
                {
                    "id": entry.id,
                    "version": entry.version,
                    "extra": entry.extra,
                    "available": entry.is_available,
                    "summary": entry.summary,
                }
                for entry in found
            ]
        )
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("environment", no_wrap=True, style="bold cyan")
        for title in ("what it is", "extra", "available"):
            table.add_column(title)
        for entry in found:
            table.add_row(entry.id, entry.summary, entry.extra or "", "[green]yes[/]" if entry.is_available else "no")
        out.console.print(table)
        if missing := sorted({entry.extra or "all-cpu" for entry in found if not entry.is_available}):
            out.console.print(f"\nfor the others: pip install 'agentgym[{','.join(missing)}]'", markup=False)
