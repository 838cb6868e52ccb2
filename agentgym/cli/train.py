"""``agentgym train``: train an agent by a recipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentgym.cli.output import JsonFlag, output

if TYPE_CHECKING:
    from agentgym.trainers.config import TrainConfig


def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe's name; left out with --resume.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to change, as in optimizer.lr=1e-4.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN_DIR", help="Go on with a run that was stopped.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run goes; by default runs/<recipe>-<NNN>.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train an agent end to end: warm start, reinforcement learning, evaluation before and after."""
    from dataclasses import asdict

    from agentgym.cli.exits import resumable_by
    from agentgym.cli.run_dirs import need_train_extra

    is_first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes the one that has the folder and the word
    with output(as_json and is_first) as out:
        need_train_extra("training")
        config, folder = _plan(recipe, overrides or [], resume, run_dir)
        from agentgym.report import write_report
        from agentgym.trainers.loop import train as run

        with resumable_by(f"agentgym train --resume {folder}"):
            result = run(config, folder, resume=resume is not None)
            if not is_first:
                return
            report = write_report(folder)
        out.result(asdict(result))
        before, after = (
            f"{s:.1%}" if s is not None else "not measured" for s in (result.success_before, result.success_after)
        )
        out.console.print(
            f"success before RL {before}, after [bold]{after}[/]; "
            f"{result.steps} steps, {result.num_trajectories:,} episodes, {result.wall_s:,.0f} s\n"
            f"report: {report}",
            soft_wrap=True,
        )


def _plan(
    recipe: str | None, overrides: list[str], resume: Path | None, run_dir: Path | None
) -> tuple[TrainConfig, Path]:
    from agentgym.cli.run_dirs import new_run_dir
    from agentgym.errors import UsageError
    from agentgym.trainers.overrides import apply_overrides, load_config
    from agentgym.trainers.recipes import load_recipe, recipe_names

    if resume is not None:
        if recipe is not None or run_dir is not None:
            raise UsageError("a resumed run keeps its recipe, values and folder: agentgym train --resume RUN_DIR")
        return load_config(resume / "config.json"), resume
    if recipe is None:
        raise UsageError(f"name a recipe ({', '.join(recipe_names())}), or a run to go on with: --resume RUN_DIR")
    config = apply_overrides(load_recipe(recipe), overrides)
    return config, new_run_dir(recipe, run_dir)
