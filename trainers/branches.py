"""Branches of training runs: a new run that goes on from a checkpoint of another one, with other settings.

A branch of a run that is done with its warm start and has not begun RL shares that warm start: RL begins with the
branch's own optimizer, reference and critic, as it would in one run. A later branch goes on from the last checkpoint.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from agentgym.canonical import shell_word
from agentgym.errors import ConfigError, UsageError
from agentgym.evals.compare import flat_items
from agentgym.evals.episodes import write_json
from agentgym.rollout.record import read_json_lines, rewrite_json_lines
from agentgym.trainers.checkpoint import START, checkpoint_path, latest_checkpoint, phase_and_step
from agentgym.trainers.config.columns import needed_columns
from agentgym.trainers.config.overrides import load_config, save_config, to_dict
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.versions import PAST
from agentgym.trainers.run.folder import BRANCH, TOKENIZER_NAME

AFTER_WARM_START = (
    "num_steps", "groups_per_step", "group.group_size", "group.min_valid", "group.max_failure_rate", "credit",
    "zero_variance_filter", "critic", "optimizer", "pipeline", "schedules", "loss", "strategy", "judge", "eval",
    "checkpoint_every", "checkpoint_write", "wandb_project", "sampling.temperature", "sampling.top_p",
)  # fmt: skip
"""Settings of RL alone, which a warm start does not depend on."""
_OF_BOTH = ("loss.precision", "loss.tokens_per_microbatch", "loss.recompute_activations", "eval.split")
"""Settings among them that a warm start uses, too."""
_OF_TEACHER = ("sampling.temperature",)
DURING_RL = (
    "num_steps", "group", "credit", "zero_variance_filter", "optimizer", "loss", "sampling", "eval",
    "judge", "checkpoint_every", "checkpoint_write", "wandb_project", "num_threads", "schedules", "engine",
    "train_every", "train_at",
)  # fmt: skip
"""Settings that may differ from a checkpoint of RL on, those of a role likewise."""
_STATE = ("optimizer.kind",)
"""Settings whose state a checkpoint of RL holds."""
_COPIED = (TOKENIZER_NAME, "demos")


def warm_start_settings(config: TrainConfig) -> dict[str, object]:
    """Return the settings that a warm start depends on, by path. Two runs that agree in them can share it."""
    return {name: value for name, value in flat_items(to_dict(config)) if not _is_of_rl(name, config)}


def branch(source: Path, target: Path, config: TrainConfig) -> None:
    """Write the folder of a branch, which :func:`~agentgym.trainers.train.train` resumes.

    Args:
        source: folder of the run to branch from; it is not changed.
        target: a new or empty folder.
        config: the branch's configuration, derived from that of the run.

    Raises:
        ConfigError: a setting differs that the checkpoint depends on.
        UsageError: the run has no checkpoint to go on from, or removed it meanwhile.
        CorruptDataError: a file of the run cannot be read.
    """
    changes = changes_of(source, config)
    path = latest_checkpoint(source)
    if path is None or phase_and_step(path)[0] == "sft":
        raise UsageError(
            f"{source} has no checkpoint after its warm start; agentgym train --resume {shell_word(source)} goes on"
        )
    phase, step = phase_and_step(path)
    if not changes:
        raise UsageError(f"a branch of {source} needs a setting that differs, as in optimizer.lr=1e-5")
    _check(source, config, changes, step)
    made = target.with_name(f"{target.name}.partial")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    try:
        _link(path, checkpoint_path(made, "rl" if step else START, step))
        evals = [*(source / "eval").glob("base*"), *((source / "eval").glob("before*") if step else ())]
        copied = (*_COPIED, *((PAST,) if step else ()))
        for folder in [*evals, *(source / name for name in copied if (source / name).is_dir())]:
            shutil.copytree(folder, made / folder.relative_to(source))
        _copy_rows(source, made, step)
    except FileNotFoundError as error:
        shutil.rmtree(made, ignore_errors=True)
        raise UsageError(f"{source} is being trained, and removed {error.filename} meanwhile; try again") from error
    origin = {"run": os.path.relpath(source, target), "phase": phase, "step": step, "changes": changes}
    write_json(made / BRANCH, origin)
    save_config(config, made / "config.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(made, target)


def changes_of(source: Path, config: TrainConfig) -> dict[str, list[object]]:
    """Return the settings that differ from a run's own, each with the run's value and the new one."""
    of_source = dict(flat_items(to_dict(load_config(source / "config.json"))))
    own = dict(flat_items(to_dict(config)))
    return {
        name: [of_source.get(name), own.get(name)]
        for name in {**of_source, **own}
        if of_source.get(name) != own.get(name)
    }


def _check(source: Path, config: TrainConfig, changes: Mapping[str, object], step: int) -> None:
    """Raise an error for a setting that the checkpoint depends on."""
    before = load_config(source / "config.json")
    is_free = _is_during_rl if step else _is_of_rl
    fixed = [name for name in changes if not is_free(name, before)]
    if step:  # what it plays beside is no part of what was learnt
        fixed = [name for name in fixed if not (_is_of_frozen_role(name, before) and _is_of_frozen_role(name, config))]
    if fixed:
        where = f"after step {step}" if step else "after its warm start"
        raise ConfigError(
            f"a branch of {source} {where} keeps {', '.join(fixed)}, on which its checkpoint depends; to begin another "
            f"run from its model: agentgym train RECIPE model.path={shell_word(source / 'model')}"
        )
    if not step:
        return
    if config.num_steps < step:
        raise ConfigError(f"num_steps={config.num_steps} is below {step}, the step of the checkpoint of {source}")
    for where in ("", *(f"roles.{name}." for name, role in before.roles.items() if role.trained)):
        own = [each.for_role(where.split(".")[1]) if where else each for each in (before, config)]
        if own[1].loss.needs_reference and not own[0].loss.needs_reference:
            raise ConfigError(
                f"{where}loss.regularisers: the checkpoint of {source} has no policy before RL as a reference, which "
                "this loss needs; begin another run for it"
            )
    columns = [{name: needed_columns(of.credit) for name, of in each.by_env.items()} for each in (before, config)]
    if columns[0] != columns[1]:
        raise ConfigError(
            f"credit: {config.credit.estimator} reads other columns than {before.credit.estimator}, which the "
            f"checkpoint of {source} lacks; begin another run for it"
        )


def _is_of_rl(name: str, config: TrainConfig) -> bool:
    """Return True for a setting that a warm start does not depend on."""
    of_teacher = _OF_TEACHER if config.sft.teacher else ()
    return _is_in(name, AFTER_WARM_START) and not _is_in(name, (*_OF_BOTH, *of_teacher))


def _is_during_rl(name: str, config: TrainConfig) -> bool:
    """Return True for a setting that a checkpoint of RL does not depend on."""
    name = re.sub(r"^roles\.[^.]+\.", "", name)
    return _is_in(name, DURING_RL) and not _is_in(name, _STATE)


def _is_of_frozen_role(name: str, config: TrainConfig) -> bool:
    """Return True for a setting of a role that plays a script, a model or an endpoint."""
    role = config.roles.get(name.split(".")[1]) if name.startswith("roles.") else None
    return role is not None and not role.trained and role.past is None


def _is_in(name: str, groups: tuple[str, ...]) -> bool:
    return any(name == group or name.startswith(f"{group}.") for group in groups)


def _copy_rows(source: Path, made: Path, step: int) -> None:
    """Copy the metrics up to the checkpoint, so that the branch's curve is whole."""
    rows = read_json_lines(source / "metrics.jsonl")
    kept = [row for row in rows if row["phase"] == "sft" or (step and row["step"] <= step)]
    rewrite_json_lines(made / "metrics.jsonl", kept)


def _link(source: Path, target: Path) -> None:
    """Copy a checkpoint, whose files never change; links to the same files where the disk can, which take no space."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(source, target, copy_function=os.link)
    except (OSError, shutil.Error):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
