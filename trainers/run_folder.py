"""The folder of a training run: checks before a start, changes when a run goes on; and the result of a run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import ConfigError, UsageError
from agentgym.rollout import journal
from agentgym.rollout.kept_files import FOLDER
from agentgym.trainers.config.overrides import load_config, save_config, to_dict
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.run_env import named
from agentgym.trust import SIGNATURE_NAME

TOKENIZER_NAME = "tokenizer"
"""Subfolder of a run's folder for a tokenizer that was trained for the run."""


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


def extend_run(config: TrainConfig, run_dir: Path) -> None:
    """Save the greater number of steps of a resumed run; its final evaluation becomes an intermediate one."""
    path = run_dir / "config.json"
    before = load_config(path).num_steps
    if config.num_steps == before:
        return
    save_config(config, path)
    for name in load_config(path).by_env:
        last = run_dir / "eval" / named("after", name)
        if last.is_dir():
            last.replace(last.with_name(named(f"step-{before:06d}", name)))


def forget_failed_start(run_dir: Path) -> None:
    """Empty the folder of a run that failed before its first step, so that a new run can use the folder."""
    if any((run_dir / name).exists() for name in ("checkpoints", "rollouts", "eval", "demos")):
        return
    metrics = run_dir / "metrics.jsonl"
    if metrics.is_file() and metrics.stat().st_size:
        return
    for path in (metrics, run_dir / "config.json", run_dir / SIGNATURE_NAME, run_dir / journal.JOURNAL):
        path.unlink(missing_ok=True)
    for name in ("tensorboard", TOKENIZER_NAME, f"{TOKENIZER_NAME}.partial", FOLDER):
        shutil.rmtree(run_dir / name, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The result of a finished run."""

    run_dir: str
    steps: int
    steps_trained: int
    """Number of steps that trained at least one token."""
    num_trajectories: int
    success_base: float | None
    """Success rate of the model before any training, if ``eval.base`` is set."""
    success_before: float | None
    success_after: float | None
    wall_s: float
