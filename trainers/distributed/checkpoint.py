"""The state of a training run, and its checkpoints: one file each, written whole or not at all."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch

from agentgym.credit.state import CreditState
from agentgym.errors import CorruptDataError
from agentgym.rollout.stream import StreamState
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import load_optimizer, load_weights, whole
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.models.model import frozen_copy
from agentgym.trainers.models.quantized import kept_state
from agentgym.trainers.reporting.activity import Activity
from agentgym.trainers.scoring.columns import ColumnMaker
from agentgym.trainers.types import CausalLM, StateDict

Phase = Literal["sft", "rl"]
_PHASES: tuple[Phase, ...] = ("sft", "rl")
NUM_KEPT = 2


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Everything that training changes, after ``step`` steps of ``phase``.

    Task order, sampling and data order are functions of the seed and the step, so the step is their whole state.
    """

    phase: Phase
    step: int = 0
    model: CausalLM
    optimizer: torch.optim.Optimizer
    columns: ColumnMaker
    """Holds the critic, and the last response to each task."""
    activity: Activity
    reference: CausalLM | None = None
    """The policy before RL, where a KL term needs it."""
    credit: CreditState = field(default_factory=CreditState)
    entropy_history: EntropyHistory = field(default_factory=EntropyHistory)
    stream: StreamState | None = None
    """None before the first step of RL."""
    success_before: float | None = None
    """None before its evaluation."""
    num_trajectories: int = 0
    started: float = field(default_factory=time.perf_counter)
    """On the clock of ``time.perf_counter``; earlier processes of a resumed run count."""

    @property
    def wall_s(self) -> float:
        """Seconds that the run has taken."""
        return time.perf_counter() - self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A :class:`TrainState` as plain data. What is sharded over ranks is whole."""

    phase: Phase
    step: int
    model: StateDict
    optimizer: StateDict
    rng: torch.Tensor
    """Torch's global generator; the library itself draws nothing from it, a model with dropout does."""
    reference: StateDict | None
    credit_state: StateDict
    """Of trackers and curricula of the credit pipeline."""
    entropy_history: StateDict
    """Of EPO."""
    stream: StateDict | None
    success_before: float | None
    num_trajectories: int
    wall_s: float
    columns: StateDict = field(default_factory=dict)
    activity: StateDict = field(default_factory=dict)


def save_state(run_dir: Path, state: TrainState, ranks: Ranks) -> None:
    """Write a checkpoint of the run's state. All ranks must call this; the first writes."""
    checkpoint = Checkpoint(
        phase=state.phase,
        step=state.step,
        model=whole(kept_state(state.model)),
        optimizer=whole(state.optimizer.state_dict()),
        rng=torch.get_rng_state(),
        reference=None if state.reference is None else whole(kept_state(state.reference)),
        credit_state=state.credit.to_dict(),
        entropy_history=state.entropy_history.to_dict(),
        stream=None if state.stream is None else asdict(state.stream),
        success_before=state.success_before,
        num_trajectories=state.num_trajectories,
        wall_s=state.wall_s,
        columns=state.columns.state_dict(),
        activity=state.activity.state_dict(),
    )
    if ranks.is_main:
        save_checkpoint(run_dir, checkpoint)


def restore_state(state: TrainState, found: Checkpoint) -> None:
    """Continue a new run's state from a checkpoint. All ranks must call this.

    Args:
        state: its optimizer is that of the checkpoint's phase.
    """
    state.phase, state.step = found.phase, found.step
    load_weights(state.model, found.model)
    load_optimizer(state.optimizer, found.optimizer)
    torch.set_rng_state(found.rng)
    if found.reference is not None:
        state.reference = frozen_copy(state.model)
        load_weights(state.reference, found.reference)
    state.credit = CreditState.from_dict(found.credit_state)
    state.entropy_history = EntropyHistory.from_dict(found.entropy_history)
    state.stream = None if found.stream is None else StreamState(**found.stream)
    state.success_before, state.num_trajectories = found.success_before, found.num_trajectories
    state.started -= found.wall_s
    state.columns.load_state_dict(found.columns)
    state.activity.load_state_dict(found.activity)


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
