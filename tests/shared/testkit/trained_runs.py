"""The record of a run against the tokens that its step trained."""

from __future__ import annotations

from pathlib import Path

from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.types import Trajectory


def assert_one_step_trained_every_token(run_dir: Path) -> list[Trajectory]:
    """Assert that a run's only step trained each token that was sampled through its harness; return its episodes.

    Groups must have a reward in every episode, and an estimator that subtracts no mean.
    """
    (row,) = (row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl")
    (record,) = read_records(record_path(run_dir, 0))
    episodes = list(record.group.trajectories)
    assert all(one.status.is_evidence and one.turns for one in episodes), [one.error for one in episodes]
    num_sampled = sum(len(turn.completion.token_ids) for one in episodes for turn in one.turns)
    assert row["trained_tokens"] == num_sampled > 0, row
    assert row["grad_norm"] > 0, row
    return episodes
