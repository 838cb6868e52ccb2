"""``agentgym credit``: apply other estimators to a run's recorded rollouts."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from agentgym.cli.output import JsonFlag, Output, output, page_path
from agentgym.cli.trust import TrustFlag, require_trust
from agentgym.errors import UsageError
from agentgym.progress import progress_bars

if TYPE_CHECKING:
    from agentgym.report.credit_page import CreditReport


def credit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")],
    estimator: Annotated[str, typer.Option(metavar="A,B", help="Estimators to compare.")] = "gigpo,hgpo,grpo",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting to change for all estimators, as in credit.gamma=1.0."
        ),
    ] = None,
    steps: Annotated[
        str,
        typer.Option(metavar="FIRST:LAST", help="RL steps, counted from 1, first and last included. [default: all]"),
    ] = "",
    out_path: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="HTML file to write. [default: RUN/credit.html]")
    ] = None,
    env: Annotated[str, typer.Option(metavar="NAME", help="The environment, if the run used several.")] = "",
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Apply several estimators to a run's recorded rollouts and show how their credit differs turn by turn.

    Each estimator uses the run's credit.* settings as far as they apply to it. All are compared with the recorded
    credit that the run was trained with.
    """
    from agentgym.report.credit_page import write_credit_report
    from agentgym.rollout.recredit import (
        check_env_name,
        plan_recredit,
        read_credit_settings,
        read_held_columns,
        read_scored_columns,
        select_steps,
    )

    with output(as_json) as out:
        require_trust(run, trust)
        chosen = select_steps(run, *_bounds(steps))
        check_env_name(run, env)
        held = read_held_columns(run, env)
        settings, scored = read_credit_settings(run, env), read_scored_columns(run)
        plan = plan_recredit(estimator.split(","), settings, overrides or [], held, scored)
        plan = replace(plan, env_name=env)
        path = page_path(run / "credit.html" if out_path is None else out_path)
        with progress_bars(out.status, transient=True) as bars:
            task = bars.add_task("steps", total=len(chosen))
            report = write_credit_report(run, plan, chosen, path, on_step=lambda step: bars.advance(task))
        out.result(_as_json(run, len(chosen), report))
        _print(out, report)


def _bounds(text: str) -> tuple[int | None, int | None]:
    """Convert ``FIRST:LAST``, counted from 1, to bounds counted from 0. Either may be left out; one number is both."""
    first, colon, last = text.strip().partition(":")
    try:
        bounds = [int(part) - 1 if part.strip() else None for part in (first, last if colon else first)]
    except ValueError:
        bounds = [-1]
    if any(bound is not None and bound < 0 for bound in bounds):
        raise UsageError(f"--steps takes FIRST:LAST, counted from 1, as in 1:20; got {text!r}")
    return bounds[0], bounds[1]


def _as_json(run: Path, num_steps: int, report: CreditReport) -> dict[str, object]:
    return {
        "run_dir": str(run),
        "steps": num_steps,
        "num_groups": report.num_groups,
        "num_turns": report.num_turns,
        "recorded": None if report.recorded is None else asdict(report.recorded),
        "estimators": [asdict(summary) for summary in report.estimators],
        "notes": list(report.notes),
        "report": str(report.path),
    }


def _print(out: Output, report: CreditReport) -> None:
    from agentgym.report.credit_page import COLUMNS

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("estimator", style="bold", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column.short, justify="right", width=max(6, *map(len, column.short.split())))
    for summary in (report.recorded, *report.estimators):
        if summary is not None:
            table.add_row(summary.name.rpartition(":")[2], *(column.text(summary) for column in COLUMNS))
    out.console.print(table)
    out.console.print(
        f"{report.num_turns:,} turns of {report.num_groups:,} groups; correlation and sign: with recorded"
    )
    for note in report.notes:
        out.console.print(f"note: {note}", soft_wrap=True, markup=False)
    out.console.print(f"report: {report.path}", soft_wrap=True, markup=False)
