"""``agentgym doctor``: show what this machine has and which environments and engines work."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from agentgym.cli.output import JsonFlag, Output, output


def doctor(as_json: JsonFlag = False) -> None:
    """Show what this machine has, and which environments and engines work on it."""
    from agentgym.cli.machine import engines, environments, extras, facts, models, packages, sandboxes

    with output(as_json) as out:
        found = facts()
        sections = {
            "machine": found,
            "engines": engines(found),
            "models": models(),
            "sandboxes": sandboxes(),
            "envs": environments(),
            "extras": extras(),
            "packages": packages(),
        }
        value = {title: [asdict(fact) for fact in rows] for title, rows in sections.items()}
        out.result(value)
        for title, rows in value.items():
            if rows:
                _print(out, title, rows)


def _print(out: Output, title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(width=1)
    table.add_column(min_width=14, no_wrap=True)
    table.add_column()
    for row in rows:
        mark = "[green]✓[/]" if row["ok"] else "[yellow]–[/]"
        fix = f"  [dim]→ {escape(row['fix'])}[/]" if row["fix"] else ""
        table.add_row(mark, escape(row["name"]), escape(row["detail"]) + fix)
    out.console.print(f"[bold]{title}[/]")
    out.console.print(table)
