"""Short runs that differ in one component, so that a test sees whether it changes the weights."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import EvalConfig
from agentgym.trainers.train import train
from testkit import counting_runs

NUM_STEPS = 2
ENV = f"env.id={Path(__file__).parent / 'parity_env.py'}:Parity-v0"


@functools.cache
def weights_after(*overrides: str) -> str:
    """Return the weights of a small model after two steps of RL with 0/1 rewards, most of whose groups are mixed.

    Args:
        overrides: settings as on the command line, as ``loss.kind=pacs``.
    """
    return _trained(overrides)[0]


@functools.cache
def metrics_after(*overrides: str) -> tuple[dict[str, Any], ...]:
    """Return the metrics of the steps of that run."""
    return _trained(overrides)[1]


@functools.cache
def _trained(overrides: tuple[str, ...]) -> tuple[str, tuple[dict[str, Any], ...]]:
    made = counting_runs.config(num_steps=NUM_STEPS, eval=EvalConfig(num_episodes=2), checkpoint_every=NUM_STEPS)
    with tempfile.TemporaryDirectory(prefix="agentgym-acting-") as folder:
        run_dir = Path(folder) / "run"
        train(apply_overrides(made, [ENV, "zero_variance_filter=off", *overrides]), run_dir)
        rows = read_json_lines(run_dir / "metrics.jsonl")
        return counting_runs.weights(run_dir), tuple(row for row in rows if row["phase"] == "rl")
