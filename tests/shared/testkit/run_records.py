"""Functions that read the records of training runs, to compare runs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from agentgym.rollout.record import read_records, record_path, recorded_steps
from agentgym.types import Trajectory


def told(run_dir: Path) -> list[Any]:
    """Return a run's records of its episodes without times and retries."""
    groups = [r.group for step in recorded_steps(run_dir) for r in read_records(record_path(run_dir, step))]
    return [(group.ordinal, [_told(trajectory) for trajectory in group.trajectories]) for group in groups]


def _told(trajectory: Trajectory) -> Any:
    turns = [(t.prompt_ids, t.completion, t.action, t.replies, t.reward_parts, t.state_key) for t in trajectory.turns]
    return trajectory.seed, trajectory.task, trajectory.status, trajectory.success, trajectory.reward, turns


def weights(run_dir: Path) -> str:
    return hashlib.sha256((run_dir / "model" / "model.safetensors").read_bytes()).hexdigest()


def num_retries(run_dir: Path, step: int) -> int:
    return sum(t.num_retries for r in read_records(record_path(run_dir, step)) for t in r.group.trajectories)
