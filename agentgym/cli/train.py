"""``agentgym train``: train an agent with a recipe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from agentgym.canonical import shell_word
from agentgym.cli.exits import resumable_by
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.cli.trust import TrustFlag, require_trust
from agentgym.cli.view import print_episodes
from agentgym.errors import ConfigError, UsageError, unknown_name

if TYPE_CHECKING:
    from agentgym.trainers.config.train import TrainConfig
    from agentgym.trainers.planning.dry_run import DryRun
    from agentgym.trainers.run.folder import TrainResult

_OPTIONS = ("--resume", "--run-dir", "--dry-run", "--ranks", "--device-gib", "--episodes", "--trust", "--json")


def train(  # noqa: PLR0913, PLR0917  # one per option
    recipe: Annotated[str | None, typer.Argument(help="A recipe's name; left out with --resume.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to change, as in optimizer.lr=1e-4.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR",
            help="Resume a stopped run, or train a finished one for more steps with num_steps=N. With other values and "
            "--run-dir NEW, go on from its last checkpoint as a branch in another folder.",
        ),
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run. [default: runs/<recipe>-<NNN>]")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the run needs, such as memory, and do not train.")
    ] = False,
    ranks: Annotated[int | None, typer.Option(min=1, help="With --dry-run: number of training processes.")] = None,
    device_gib: Annotated[
        float | None,
        typer.Option(min=0.0, help="With --dry-run: plan for a GPU of so many GiB; fail if the run does not fit."),
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Print episodes of N tasks at the end, as view --episodes N does.")
    ] = 0,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train an agent with a recipe: warm start, reinforcement learning, evaluation before and after."""
    from agentgym.api.run_dirs import need_train_extra

    is_first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes, only this one writes the folder and prints
    with output(as_json and is_first) as out:
        _refuse_options([*([recipe] if recipe else []), *(overrides or [])])
        need_train_extra("training")
        if resume is not None:
            require_trust(resume, trust)
        elif trust:
            raise UsageError("--trust is for a run folder of another user: name it with --resume")
        if dry_run:
            _plan_on_paper(recipe, overrides or [], resume, ranks, device_gib or 0.0, out)
            return
        if ranks is not None or device_gib is not None:
            raise UsageError(
                "--ranks and --device-gib plan a run: add --dry-run; torchrun starts several ranks, and "
                "cluster.num_trainer_ranks on a Ray cluster"
            )
        config, folder = _plan(recipe, overrides or [], resume, run_dir, out)
        with out.status.status("loading torch and transformers"):
            from agentgym.report import write_report
            from agentgym.trainers.train import train as run

        with resumable_by(f"agentgym train --resume {shell_word(folder)}", folder):
            result = run(config, folder, resume=resume is not None)
            if not is_first:
                return
            report = write_report(folder)
        _conclude(result, folder, report, out)
        if episodes:
            print_episodes(folder, episodes, out)


def _conclude(result: TrainResult, folder: Path, report: Path, out: Output) -> None:
    """Print what a run brought, and where its results are."""
    out.result(asdict(result))
    before = "before RL" if result.steps else "without RL (num_steps=0)"
    measured = {"base model": result.success_base, before: result.success_before, "after": result.success_after}
    shown = [f"{when} [bold]{success:.1%}[/]" for when, success in measured.items() if success is not None]
    is_all = result.steps_trained == result.steps_made
    trained = f"{result.steps_made}" if is_all else f"trained in {result.steps_trained} of {result.steps_made}"
    out.console.print(
        f"success: {', '.join(shown) or 'not measured'}; "
        f"{trained} steps, {result.num_trajectories:,} episodes, {result.wall_s:,.0f} s\n"
        f"report: {report}",
        soft_wrap=True,
    )
    for name, told in (("model", ""), ("best", " (the best of all evaluations)")):
        if (folder / name).is_dir():
            out.console.print(f"model: {folder / name}{told}", soft_wrap=True, markup=False)
    if shown:
        line = f"compare with random actions: agentgym eval {shell_word(folder)} --policy random"
        out.console.print(line, soft_wrap=True, markup=False)


def _refuse_options(words: list[str]) -> None:
    """Raise an error for an unknown option and suggest ``key=value``, the form of a run's settings."""
    wrong = next((word for word in words if word.startswith("-")), None)
    if wrong is None:
        return
    name = wrong.lstrip("-").partition("=")[0].replace("-", "_")
    if name.partition(".")[0] in _keys():
        raise UsageError(f"no option {wrong!r}; write a setting of the run as {name}=VALUE")
    raise unknown_name(
        "option", wrong, _OPTIONS, "agentgym train --help lists them; write settings of the run as key=value"
    )


def _keys() -> set[str]:
    from agentgym.trainers.config.train import TrainConfig

    return {part.name for part in fields(TrainConfig)}


def _plan_on_paper(
    recipe: str | None, overrides: list[str], resume: Path | None, ranks: int | None, device_gib: float, out: Output
) -> None:
    """Print the size of the run and the memory that it needs."""
    with out.status.status("planning"):  # counting the parameters of a model that must be built takes seconds
        from agentgym.trainers.planning.dry_run import TooSmallError, dry_run

        config = _config(recipe, overrides, resume, out)
        is_auto = config.loss.tokens_per_microbatch == "auto"
        num_ranks = ranks or max(1, config.cluster.num_trainer_ranks)
        too_small: UsageError | None = None
        try:
            found = dry_run(config, num_ranks, device_gib)
        except TooSmallError as error:
            found, too_small = error.plan, error
    notes: Sequence[str] = ()
    if too_small is None:
        with out.status.status("rehearsing the start"):
            from agentgym.trainers.run.rehearsal import rehearse
            from agentgym.trainers.sft.files import rehearse_files

            notes = [*rehearse(config), *rehearse_files(config.sft.files)]
    notes = (*config.warnings, *notes)
    _print_plan(found, notes, out, is_named=resume is not None or _names_env(overrides), is_auto=is_auto)
    if too_small is not None:
        raise too_small


def _names_env(overrides: list[str]) -> bool:
    return any(text.startswith(("env.id=", "envs=")) for text in overrides)


def _print_plan(found: DryRun, notes: Sequence[str], out: Output, *, is_named: bool, is_auto: bool) -> None:
    """Print the plan of a run as a table, with its notes."""
    from agentgym.trainers.planning.footprint import PART_NAMES

    out.result(found.as_dict())
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row(
        "[bold]model[/]", f"{found.model}, {found.num_parameters:,} parameters, {found.num_trained:,} trained"
    )
    env = found.env if is_named else f"{found.env} (the recipe's own)"
    table.add_row("[bold]a step[/]", f"{found.rollouts_per_step:,} rollouts of {env}, {found.num_steps:,} steps")
    unknown = "not known before the environment is made; env.kwargs.max_turns limits it"
    for name, count in (("tokens", found.tokens_per_step), ("sampled", found.sampled_per_step)):
        table.add_row(f"[bold]{name} a step[/]", unknown if count is None else f"at most {count:,}")
    cache = f"{found.kv_bytes_per_token:,} bytes a token, {_gib(found.kv_cache)} GiB if all are at their longest"
    table.add_row("[bold]engine's cache[/]", cache)
    device = f"a GPU of {found.gpu_bytes / 2**30:.0f} GiB" if found.gpu_bytes else "a CPU; for a GPU: --device-gib"
    chosen = f" for {device}" if is_auto else ""
    table.add_row("[bold]tokens a microbatch[/]", f"{found.tokens_per_microbatch:,}{chosen}")
    rank = " a rank" if found.num_ranks > 1 else ""
    for name, size in found.as_dict()["memory"].items():
        if size:
            table.add_row(f"[bold]{PART_NAMES.get(name, name)}, GiB{rank}[/]", _gib(size))
    other, value = (
        ("kept", found.activations_kept)
        if found.memory.activations == found.activations_recomputed
        else ("recomputed", found.activations_recomputed)
    )
    table.add_row(f"[bold]activations if {other}[/]", f"{_gib(value)} GiB")
    parts = f", of which each rank writes {_gib(found.checkpoint_per_rank)}" if found.num_ranks > 1 else ""
    table.add_row("[bold]a checkpoint, GiB[/]", f"{_gib(found.checkpoint)}{parts}")
    table.add_row("[bold]to get first[/]", "; ".join(found.downloads).replace("[", "\\[") or "nothing")
    out.console.print(table)
    if found.proposal:
        out.console.print(f"settings for these GPUs: {found.proposal}", soft_wrap=True, markup=False)
    for command in found.servers:
        out.console.print(f"a vLLM server: {command}", soft_wrap=True, markup=False)
    for note in filter(
        None, (found.servers_note, found.pace_note, found.vision_note, found.context_note, *found.strategy_notes)
    ):
        out.console.print(note, soft_wrap=True, markup=False)
    for warning in notes:
        out.console.print(f"note: {warning}", soft_wrap=True, markup=False)


def _gib(num_bytes: int) -> str:
    """Return a size in GiB, with two decimals if it is small."""
    size = num_bytes / 2**30
    return f"{size:.2f}" if size >= 0.1 or not size else f"{size:.2g}"


def _plan(
    recipe: str | None, overrides: list[str], resume: Path | None, run_dir: Path | None, out: Output
) -> tuple[TrainConfig, Path]:
    from agentgym.api.run_dirs import new_run_dir
    from agentgym.trainers.models.sources import check_source

    config = _config(recipe, overrides, resume, out, is_branch=run_dir is not None)
    if resume is not None and run_dir is not None:
        from agentgym.trainers.branches import branch

        branch(resume, new_run_dir(config.recipe, run_dir), config)
        return config, run_dir
    if resume is not None:
        return config, resume
    check_source(config.model.path)
    return config, new_run_dir(config.recipe, run_dir)


def _config(
    recipe: str | None, overrides: list[str], resume: Path | None, out: Output, *, is_branch: bool = False
) -> TrainConfig:
    from agentgym.api.sweep import has_several_values
    from agentgym.trainers.config.overrides import apply_overrides, load_config, without_arguments_of_its_env
    from agentgym.trainers.recipes import load_recipe

    if resume is not None:
        changes = [text for text in (recipe, *overrides) if text is not None]
        if not is_branch and (other := [text for text in changes if not text.startswith("num_steps=")]):
            raise UsageError(_kept(resume, other))
        config = apply_overrides(load_config(resume / "config.json"), changes)
        _note_repeats(changes, out)
        return config
    if recipe is None:
        raise UsageError(
            "name a recipe, as in agentgym train tiny env.id=ID (agentgym list --recipes describes all), or a run to "
            "resume: --resume RUN_DIR"
        )
    if "=" in recipe:
        raise UsageError(
            f"name the recipe before {recipe}, as in agentgym train tiny {recipe} (agentgym list --recipes)"
        )
    config, note = without_arguments_of_its_env(load_recipe(recipe), overrides)
    if note:
        out.note(note)
    try:
        config = apply_overrides(config, overrides)
    except ConfigError as error:
        if several := [text for text in overrides if has_several_values(text)]:
            words = " ".join(map(shell_word, [recipe, *overrides]))
            raise ConfigError(
                f"{error}. Several values ({several[0]}) are for a sweep: agentgym sweep {words}"
            ) from error
        raise
    _note_repeats(overrides, out)
    return config


def _kept(run_dir: Path, changes: list[str]) -> str:
    """Return the error of values that a resumed run cannot change, with the command that makes a branch."""
    given = " ".join(map(shell_word, changes))
    if recipes := [text for text in changes if "=" not in text]:
        return f"a resumed run keeps its recipe, got {recipes[0]}: agentgym train --resume {shell_word(run_dir)}"
    return (
        f"a resumed run keeps its values of {', '.join(text.partition('=')[0] for text in changes)}; num_steps alone "
        "can grow. To go on from its last checkpoint with other values, as a recorded branch in another folder: "
        f"agentgym train --resume {shell_word(run_dir)} {given} --run-dir NEW"
    )


def _note_repeats(overrides: list[str], out: Output) -> None:
    values: dict[str, str] = {}
    for text in overrides:
        key, _, value = text.partition("=")
        if values.get(key, value) != value:
            out.note(f"{key} is given as {values[key]} and as {value}: the last one is used")
        values[key] = value
