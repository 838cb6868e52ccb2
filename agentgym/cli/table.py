"""``agentgym table``: compare methods over seeds, as a table for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from agentgym.cli.grid import Grid
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.errors import UsageError

if TYPE_CHECKING:
    from agentgym.report.table import Table

Form = Literal["text", "markdown", "latex", "json"]


def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of training runs, or of sweeps.")],
    *,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-y",
            help="after, before or gain (held-out success), training (mean success over all steps), or a metric of "
            "metrics.jsonl, averaged over all steps; repeat it for several. [default: after, training]",
        ),
    ] = None,
    pair_by: Annotated[
        Literal["seed", "none"],
        typer.Option(help="Take differences seed by seed, as for runs that share their warm starts and tasks."),
    ] = "none",
    baseline: Annotated[str, typer.Option(help="Label of the method to compare with. [default: the first]")] = "",
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Make a row for each value of this setting; repeat it. [default: all settings that differ]",
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="Form of the table on standard output.")] = "text",
    out_path: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it to a file: .md, .tex, .json or .txt.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare methods over seeds: means, intervals, and differences to a baseline.

    Runs that differ only in their seed are one method.
    """
    from agentgym.report.table import DEFAULT, SUFFIXES
    from agentgym.report.table import table as make

    with output(as_json) as out:
        if out_path is not None and out_path.suffix not in SUFFIXES:
            raise UsageError(f"{out_path} must end in {', '.join(SUFFIXES)}")
        made = make(runs, measures=metric or DEFAULT, pair_by=pair_by, baseline=baseline, group_by=group_by or ())
        out.result(made.as_dict() | ({} if out_path is None else {"file": str(out_path)}))
        if out_path is not None:
            out_path.parent.mkdir(parents=True, exist_ok=True)
            out_path.write_text(made.render(SUFFIXES[out_path.suffix]) + "\n", encoding="utf-8")
            out.console.print(str(out_path), markup=False, soft_wrap=True)
        elif form == "text":
            print_table(out, made)
        else:
            out.console.print(made.render(form), markup=False, soft_wrap=True)


def print_table(out: Output, made: Table) -> None:
    """Print a table for people."""
    grid = Grid(*made.titles(), whole=made.titles())
    for line in made.lines(bold="{} *"):
        grid.add_row(*map(escape, line))
    out.console.print(grid)
    for note in made.notes:
        out.console.print(note, markup=False, soft_wrap=True)
