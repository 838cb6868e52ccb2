"""The folder of a training run: checks before a start, changes when a run goes on; and the result of a run."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from agentgym.errors import ConfigError, UsageError
from agentgym.evals.episodes import write_json
from agentgym.rollout import journal
from agentgym.rollout.kept_files import FOLDER
from agentgym.rollout.record import read_json_object
from agentgym.trainers.config.overrides import load_config, save_config, to_dict
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.optimizer import learning_rate
from agentgym.trainers.models.versions import PAST
from agentgym.trainers.run.env import named
from agentgym.trust import SIGNATURE_NAME

RESULT = "result.json"
"""File with the :class:`TrainResult` of a run that has finished."""
BRANCH = "branch.json"
"""File of a branch: the run and the checkpoint that it goes on from, and the settings that differ."""
TOKENIZER_NAME = "tokenizer"
"""Subfolder of a run's folder for a tokenizer that was trained for the run."""
ROLES = "roles"
"""Subfolder of the trained roles, with one folder for each."""


def check_run_dir(config: TrainConfig, run_dir: Path, *, resume: bool) -> None:
    """Check that a folder is free for a new run, or that it holds the run to resume.

    Raises:
        UsageError: a new run would overwrite an old one.
        ConfigError: the configuration differs from that of the run to resume, or has fewer steps.
    """
    path = run_dir / "config.json"
    if not resume:
        if path.exists():
            raise UsageError(
                f"{run_dir} holds a run already; resume it with --resume {run_dir}, or choose another folder"
            )
        if (run_dir / TOKENIZER_NAME).exists():  # it would be taken for the run's own, and removed if the start fails
            raise UsageError(f"{run_dir} holds {TOKENIZER_NAME!r}, which a run writes; choose another folder")
        return
    saved = to_dict(load_config(path))
    changed = [name for name, value in to_dict(config).items() if saved[name] != value and name != "num_steps"]
    if changed:
        raise ConfigError(f"{run_dir} was begun with other values of {', '.join(changed)}; a resumed run keeps its own")
    if config.num_steps < saved["num_steps"]:
        raise ConfigError(f"{run_dir} has num_steps={saved['num_steps']}, which can only grow, got {config.num_steps}")


def extend_run(config: TrainConfig, run_dir: Path) -> int:
    """Save the greater number of steps of a resumed run; its final evaluation becomes an intermediate one.

    Returns:
        the number of steps before.
    """
    path = run_dir / "config.json"
    before = load_config(path).num_steps
    if config.num_steps == before:
        return before
    save_config(config, path)
    for name in load_config(path).by_env:
        last = run_dir / "eval" / named("after", name)
        if last.is_dir():
            last.replace(last.with_name(named(f"step-{before:06d}", name)))
    return before


def extension_notes(config: TrainConfig, before: int, step: int) -> list[str]:
    """Return notes on numbers that follow the run's length and therefore jump where a run is given more steps.

    Args:
        config: the run's configuration, with the new number of steps.
        before: the number of steps before.
        step: number of RL steps made.
    """
    if config.num_steps == before or not 0 < step < config.num_steps:
        return []
    last, planned, new = (
        {
            "the learning rate": learning_rate(config.optimizer, at, end),
            **{
                f"the learning rate of roles.{name}": learning_rate(config.for_role(name).optimizer, at, end)
                for name, role in config.roles.items()
                if role.trained
            },
            "the weight of sft.mix": config.sft.mix.weight_at(at, end),
            **{f"the weight of {env.name}": env.weight_at(at, end) for env in config.envs},
        }
        for at, end in ((step - 1, before), (step, before), (step, config.num_steps))
    )
    return [
        f"num_steps was {before} and is {config.num_steps}: {name} goes from {last[name]:.3g} to {new[name]:.3g} at "
        f"step {step + 1}, since its schedule ends with the run"
        for name in last
        if planned[name] != new[name]
    ]


def forget_failed_start(run_dir: Path) -> None:
    """Empty the folder of a run that failed before its first step, so that a new run can use the folder."""
    if any((run_dir / name).exists() for name in ("checkpoints", "rollouts", "eval", "demos")):
        return
    metrics = run_dir / "metrics.jsonl"
    if metrics.is_file() and metrics.stat().st_size:
        return
    for path in (metrics, run_dir / "config.json", run_dir / SIGNATURE_NAME, run_dir / journal.JOURNAL):
        path.unlink(missing_ok=True)
    for name in ("tensorboard", FOLDER, TOKENIZER_NAME, f"{TOKENIZER_NAME}.partial", PAST, ROLES):
        shutil.rmtree(run_dir / name, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The result of a finished run."""

    run_dir: str
    steps: int
    steps_made: int
    """Number of steps until the run ended, below ``steps`` where ``eval.patience`` ended it."""
    steps_trained: int
    """Number of steps that trained at least one token."""
    num_trajectories: int
    success_base: float | None
    """Success rate of the model before any training, if ``eval.base`` is set."""
    success_before: float | None
    success_after: float | None
    wall_s: float


def write_result(run_dir: Path, result: TrainResult) -> None:
    """Write the result of a run that has come to its end."""
    write_json(run_dir / RESULT, asdict(result))


def is_finished(run_dir: Path) -> bool:
    """Return True if a run has come to the last of its steps."""
    steps = read_json_object(run_dir / RESULT).get("steps")
    return steps is not None and steps == read_json_object(run_dir / "config.json").get("num_steps")


def origin_of(run_dir: Path) -> str:
    """Return the run that a branch goes on from as the end of a line; empty for other runs."""
    made = read_json_object(run_dir / BRANCH)
    return f", as a branch of {made['run']}" if made else ""
