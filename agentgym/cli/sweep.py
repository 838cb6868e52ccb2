"""``agentgym sweep``: train a recipe for each combination of values and each seed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from agentgym.canonical import shell_word, strict_json
from agentgym.cli.exits import resumable_by
from agentgym.cli.grid import Grid
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.cli.trust import TrustFlag, require_trust
from agentgym.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from agentgym.api.sweep import SweepPlan

_OPTIONS = ("--resume", "--run-dir", "--jobs", "--dry-run", "--trust", "--json")


def sweep(
    recipe: Annotated[str | None, typer.Argument(help="A recipe's name; left out with --resume.")] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=A,B,C]... [seeds=0..4]",
            help="Values of settings, as in credit.estimator=grpo,gigpo; every combination is trained with every seed.",
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Run what a sweep has not finished.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the sweep. [default: runs/<recipe>-sweep-<NNN>]")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=0, help="Runs at the same time; 0: as many as the GPUs, or else the cores, allow.")
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs and do not train.")] = False,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a recipe for each combination of values and each seed; runs of one seed share their warm start."""
    from agentgym.api.run_dirs import need_train_extra
    from agentgym.api.sweep import begin, open_sweep, plan_of, read_words, run_sweep
    from agentgym.report.table import table

    with output(as_json) as out:
        words = [*([recipe] if recipe else []), *(values or [])]
        if wrong := next((word for word in words if word.startswith("-")), None):
            raise unknown_name("option", wrong, _OPTIONS, "agentgym sweep --help lists them")
        need_train_extra("training")
        if resume is not None:
            if words or run_dir is not None:
                raise UsageError("a resumed sweep keeps its recipe, values and folder: agentgym sweep --resume DIR")
            plan, folder = open_sweep(resume, lambda path: require_trust(path, trust)), resume
        else:
            if recipe is None or "=" in recipe:
                raise UsageError("name a recipe first, as in agentgym sweep tiny optimizer.lr=1e-4,3e-4 seeds=0..4")
            changes, axes, seeds = read_words(values or [])
            plan = plan_of(recipe, axes, seeds, changes)
            if not dry_run:
                folder = begin(plan, run_dir)
        if dry_run:
            _show(plan, out)
            return
        num_starts = f" from {len(plan.starts)} warm starts" if plan.starts else ""
        out.note(f"{len(plan.runs)} runs{num_starts}: {folder}")
        with resumable_by(f"agentgym sweep --resume {shell_word(folder)}", folder):
            result = run_sweep(plan, folder, jobs)
        from agentgym.cli.table import print_table

        made = table([folder], pair_by="seed")
        out.result(asdict(result) | {"table": made.as_dict()})
        print_table(out, made)
        word = shell_word(folder)
        for line in (
            f"runs: {folder / 'runs'}",
            f"table: agentgym table {word} --pair-by seed -o table.tex",
            f"figure: agentgym plot {word} -o figure.svg",
        ):
            out.console.print(line, soft_wrap=True, markup=False)


def _show(plan: SweepPlan, out: Output) -> None:
    """Print the runs of a plan."""
    out.result(plan.as_dict() | {"starts": {run.name: run.start for run in plan.runs if run.start}})
    grid = Grid("run", "values", "warm start")
    for run in plan.runs:
        shown = ", ".join(f"{key}={strict_json(run.changes[key])}" for key in plan.axes)
        grid.add_row(escape(run.name), escape(shown), run.start or "its own")
    out.console.print(grid)
    out.console.print(f"{len(plan.runs)} runs, {len(plan.starts)} shared warm starts", markup=False, highlight=False)
