"""``agentgym check``: is an environment sound?"""

from __future__ import annotations

import typer

from agentgym.cli.env_args import EnvArgument
from agentgym.cli.exits import FAILED
from agentgym.cli.output import JsonFlag, output


def check(env: EnvArgument, as_json: JsonFlag = False) -> None:
    """Run the conformance checks on an environment; exit code 1 if one fails."""
    from dataclasses import asdict

    from rich.markup import escape
    from rich.table import Table

    from agentgym.check import check_env
    from agentgym.registry import find

    with output(as_json) as out:
        find(env)  # an unknown name is the user's slip, not a failed check
        report = check_env(env)
        out.result(asdict(report))
        table = Table("", "check", "detail", box=None, pad_edge=False, header_style="bold", title_justify="left")
        for result in report.checks:
            mark = "[green]✓[/]" if result.passed else "[bold red]✗[/]"
            table.add_row(mark, result.name, escape(result.detail), style=None if result.passed else "red")
        out.console.print(table)
        num_failed = sum(not result.passed for result in report.checks)
        verdict = f"[bold red]{num_failed} of {len(report.checks)} checks failed[/]"
        out.console.print("[bold green]sound[/]" if report.passed else verdict)
    if not report.passed:
        raise typer.Exit(FAILED)
