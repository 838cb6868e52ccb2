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
        table = Table("environment", "what it is", "extra", "available", box=None, pad_edge=False, header_style="bold")
        for entry in found:
            available = "[green]yes[/]" if entry.is_available else f"no: pip install 'agentgym\\[{entry.extra}]'"
            table.add_row(f"[bold cyan]{entry.id}[/]", entry.summary, entry.extra or "", available)
        out.console.print(table)
