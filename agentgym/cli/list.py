"""``agentgym list``: which environments there are."""

from __future__ import annotations

from agentgym.cli.output import JsonFlag, output


def list_(as_json: JsonFlag = False) -> None:
    """List the environments, and whether they can be used here."""
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
