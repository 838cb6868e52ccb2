"""The seconds that a run took, read from its folder: of every turn, engine tick and training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from agentgym.errors import CorruptDataError
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.types import Trajectory

ENGINE_COUNTERS = ("engine/busy_s", "engine/num_ticks", "engine/num_prefill_tokens", "engine/num_sampled_tokens")
GRADIENT = "time/train_s"
WAITING = "time/rollout_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrace:
    """One turn: its work for the engine, and its seconds elsewhere.

    Example:
        >>> TurnTrace(env_s=1.5, num_sampled_tokens=6).generate_s
        0.0
    """

    render_s: float = 0.0
    """Seconds of rendering and parsing."""
    generate_s: float = 0.0
    """Seconds from the request to the completion, under the load of the recorded run."""
    env_s: float = 0.0
    """Seconds in the environment."""
    num_prompt_tokens: int = 0
    """Tokens that the turn added to its context before the completion."""
    num_sampled_tokens: int = 1


EpisodeTrace = tuple[TurnTrace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """Cost of an engine that works in ticks, each with one token of every running request.

    Example (a tick with three requests, one of which reads a prompt of 100 tokens):
        >>> round(EngineCost(tick_s=0.01, token_s=0.001).seconds(num_tokens=102), 3)
        0.112
    """

    tick_s: float
    """Seconds of a tick, whatever it contains."""
    token_s: float
    """Seconds of each token that is read or sampled."""

    def seconds(self, num_tokens: int) -> float:
        """Return the seconds of a tick that forwards so many tokens."""
        return self.tick_s + self.token_s * num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The seconds of a run that a simulation of other schedules needs."""

    groups: tuple[tuple[EpisodeTrace, ...], ...]
    """The episodes of every group, by ordinal."""
    gradient_s: float
    """Mean seconds of a step's forward and backward passes."""
    other_training_s: float = 0.0
    """Mean seconds of the rest of a training step: credit, records, new weights for the engine."""
    engine: EngineCost | None = None
    """Cost of the engine; None if it counts no ticks, so that completions take their recorded seconds."""


def read_recording(run_dir: Path) -> Recording:
    """Read a training run's records and metrics.

    Record in sync mode, in which nothing else runs during training.

    Raises:
        CorruptDataError: the folder has no recorded rollouts or no metrics of training steps, or they cannot be read.
    """
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    steps = recorded_steps(run_dir)
    if not rows or not steps:
        raise CorruptDataError(f"{run_dir} has no recorded training steps; give the folder of a training run")
    by_ordinal = {
        record.group.ordinal: tuple(episode_trace(t) for t in record.group.valid)
        for step in steps
        for record in read_records(record_path(run_dir, step))
    }
    training_s = [_seconds(row, but=WAITING) for row in rows]
    gradient_s = fmean(row.get(GRADIENT, 0.0) for row in rows)
    return Recording(
        groups=tuple(episodes for _, episodes in sorted(by_ordinal.items()) if episodes),
        gradient_s=gradient_s,
        other_training_s=max(0.0, fmean(training_s) - gradient_s),
        engine=fit_engine(
            [[float(row[name]) for name in ENGINE_COUNTERS] for row in rows if ENGINE_COUNTERS[0] in row]
        ),
    )


def episode_trace(trajectory: Trajectory) -> EpisodeTrace:
    """Return the seconds and tokens of an episode's turns."""
    return tuple(
        TurnTrace(
            render_s=turn.latency.render_s,
            generate_s=turn.latency.generate_s,
            env_s=turn.latency.env_s,
            num_prompt_tokens=len(turn.prompt_ids),
            num_sampled_tokens=len(turn.completion.token_ids),
        )
        for turn in trajectory.turns
    )


def fit_engine(counters: Sequence[Sequence[float]]) -> EngineCost | None:
    """Fit an engine's costs to its busy seconds (least squares, neither below 0).

    Args:
        counters: after each training step, seconds busy, ticks, prompt tokens and sampled tokens, all from the start of
            the process on (so the first holds what came before training, such as an evaluation).

    Example:
        >>> cost = fit_engine([[3.0, 100, 500, 500], [5.0, 250, 600, 650], [8.5, 400, 1000, 1250]])
        >>> round(cost.tick_s, 4), round(cost.token_s, 4)
        (0.01, 0.002)
    """
    if len(counters) < 2:
        return None
    table = np.diff(np.array(counters), axis=0, prepend=0.0)
    table = table[(table[:, 0] > 0) & (table[:, 1] > 0)]  # after a resumption the counters begin anew
    if not len(table):
        return None
    busy_s, causes = table[:, 0], np.stack([table[:, 1], table[:, 2] + table[:, 3]], axis=1)
    (tick_s, token_s), *_ = np.linalg.lstsq(causes, busy_s, rcond=None)
    if tick_s < 0:
        tick_s, token_s = 0.0, busy_s.sum() / causes[:, 1].sum()
    if token_s < 0:
        tick_s, token_s = busy_s.sum() / causes[:, 0].sum(), 0.0
    return EngineCost(tick_s=float(tick_s), token_s=float(token_s))


def _seconds(row: dict[str, Any], but: str) -> float:
    return sum(float(value) for name, value in row.items() if name.startswith("time/") and name != but)
