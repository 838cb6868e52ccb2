"""``agentgym check``: run the conformance checks on an environment."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from agentgym.cli.env_args import EnvArgument, KwargsArgument, parse_pairs
from agentgym.cli.exits import FAILED
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.registry import find

if TYPE_CHECKING:
    from agentgym.check.report import CheckResult


def check(
    env: EnvArgument,
    kwargs: KwargsArgument = None,
    *,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Episodes of each check; more find rarer faults. [default: 5, or 2 if the environment asks a service]",
        ),
    ] = None,
    step_timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit of a reset or a step.")] = 60.0,
    as_json: JsonFlag = False,
) -> None:
    """Run the conformance checks on an environment; exit code 1 if one fails."""
    from agentgym.check import check_env
    from agentgym.check.conformance import CHECKS
    from agentgym.check.report import blocked

    with output(as_json) as out:
        find(env)  # an unknown name is a usage error, not a failed check
        show = partial(_show_row, out, max(len(known.name) for known in CHECKS))
        without_result: list[str] = []

        def on_result(result: CheckResult) -> None:
            if result.is_blocked:
                without_result.append(result.name)
            else:
                show(result)

        report = check_env(
            env,
            num_episodes=episodes,
            step_timeout_s=step_timeout,
            on_result=on_result,
            arguments=parse_pairs(kwargs or ()),
        )
        if without_result:
            detail = f"no result, since they depend on a check that failed: {', '.join(without_result)}"
            show(blocked(f"{len(without_result)} others", detail))
        out.result(asdict(report))
        out.console.print("[bold green]sound[/]" if report.passed else f"[bold red]{report.verdict}[/]")
    if not report.passed:
        raise typer.Exit(FAILED)


def _show_row(out: Output, width: int, result: CheckResult) -> None:
    """Print the row of a check as soon as the check is done, aligned with all other rows."""
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=1)
    row.add_column(width=width)
    row.add_column()
    if not result.passed:
        mark = "[bold red]✗[/]"
    elif result.is_blocked:
        mark = "–"
    else:
        mark = "[yellow]![/]" if result.detail.startswith("warning:") else "[green]✓[/]"
    row.add_row(mark, result.name, escape(result.detail), style=None if result.passed else "red")
    out.console.print(row)
