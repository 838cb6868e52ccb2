"""Checkpoints: everything a run needs to go on exactly, in one file that is there whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from agentgym.errors import CorruptDataError

Phase = Literal["sft", "rl"]
_PHASES: tuple[Phase, ...] = ("sft", "rl")
NUM_KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a run after ``step`` steps of ``phase``.

    Task order, sampling and data order are functions of the seed and the step, so the step is their whole state.
    """

    phase: Phase
    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    rng: torch.Tensor
    """Torch's global generator; the library itself draws nothing from it, a model with dropout does."""
    reference: dict[str, Any] | None
    credit_state: dict[str, Any]
    """What trackers and curricula of the credit pipeline remember."""
    entropy_history: dict[str, Any]
    """What EPO remembers."""
    stream: dict[str, Any] | None
    """Where the stream of groups was; None before RL."""
    success_before: float | None
    num_trajectories: int
    wall_s: float
    columns: dict[str, Any] = field(default_factory=dict)
    """What the makers of the credit table's columns keep: a critic, the last response to each task."""
    activity: dict[str, Any] = field(default_factory=dict)
    """For how many steps parts of the run have changed nothing."""


def checkpoint_path(run_dir: Path, phase: Phase, step: int) -> Path:
    """Where a checkpoint lies."""
    return run_dir / "checkpoints" / f"{phase}-{step:06d}.pt"


def save_checkpoint(run_dir: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, put it in place in one step, and drop older ones but the latest two."""
    path = checkpoint_path(run_dir, checkpoint.phase, checkpoint.step)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as out:
        torch.save({name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(partial, path)
    for old in _checkpoints(run_dir)[:-NUM_KEPT]:
        old.unlink()


def load_latest_checkpoint(run_dir: Path) -> Checkpoint | None:
    """The latest checkpoint of a run, None if it has none yet.

    Raises:
        CorruptDataError: it cannot be read; the message says what to do.
    """
    found = _checkpoints(run_dir)
    if not found:
        return None
    path = found[-1]
    try:
        return Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise CorruptDataError(
            f"the checkpoint {path} is damaged ({type(error).__name__}: {reason}); "
            f"delete it to resume from {found[-2].name if len(found) > 1 else 'the beginning'}"
        ) from error


def _checkpoints(run_dir: Path) -> list[Path]:
    paths = (run_dir / "checkpoints").glob("*.pt")
    return sorted(paths, key=lambda path: (_PHASES.index(path.name.partition("-")[0]), path.name))
