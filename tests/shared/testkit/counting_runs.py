"""Short training runs on the environment of `counting_env.py`."""

from __future__ import annotations

import atexit
import functools
import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentgym.rollout.group import GroupConfig
from agentgym.rollout.record import read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

ENV_FILE = Path(__file__).parent / "counting_env.py"


NUM_STEPS = 6


def config(**changes: Any) -> TrainConfig:
    """Return a run of a model that can count a little; with changes of ``model`` or ``sft``, a run from scratch."""
    if "model" in changes or "sft" in changes:
        return from_scratch(**changes)
    model = replace(from_scratch().model, path=str(warm_model()))
    return from_scratch(model=model, sft=SftConfig(num_demos=0), **changes)


@functools.cache
def warm_model() -> Path:
    """Return the folder of a model after the demonstrations, trained once in a process of tests."""
    folder = tempfile.TemporaryDirectory(prefix="agentgym-counting-")
    atexit.register(folder.cleanup)
    run_dir = Path(folder.name) / "run"
    train(from_scratch(num_steps=0, eval=EvalConfig(num_episodes=1)), run_dir)
    return run_dir / "model"


def from_scratch(**changes: Any) -> TrainConfig:
    """Return a run that makes a tokenizer and a model, shows it demonstrations, and trains it."""
    made = replace(
        apply_overrides(load_recipe("tiny"), [f"env.id={ENV_FILE}:Counting-v0"]),
        model=ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=320, max_context_tokens=160),
        sft=SftConfig(num_demos=320, num_epochs=2, batch_size=8, checkpoint_every=20),
        num_steps=NUM_STEPS,
        groups_per_step=3,
        group=GroupConfig(group_size=4, num_envs=8),
        optimizer=OptimizerConfig(),
        eval=EvalConfig(num_episodes=6),
        checkpoint_every=2,
    )
    return replace(made, **changes)


def weights(run_dir: Path) -> str:
    return weights_in(run_dir / "model")


def weights_in(folder: Path) -> str:
    """A hash of a model's file, since a report of how long bytes differ takes minutes."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def trained_ordinals(run_dir: Path) -> list[int]:
    return [r.group.ordinal for step in recorded_steps(run_dir) for r in read_records(record_path(run_dir, step))]


def token_ages(run_dir: Path) -> set[int]:
    """Return the staleness of every token of a run: trained version minus sampled version."""
    return {
        step - version
        for step in recorded_steps(run_dir)
        for record in read_records(record_path(run_dir, step))
        for trajectory in record.group.trajectories
        for turn in trajectory.turns
        for version in turn.completion.policy_versions
    }
