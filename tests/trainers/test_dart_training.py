"""DART as a composition: pool of successes, shrinking groups, limits by success, uncertain turns, truncated ratios."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import from_scratch, weights

from agentgym.rollout.record import probe_record_path, read_json_lines, read_records, record_path, recorded_steps
from agentgym.rollout.replay import BEFORE_RL
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.train import train

DART = (
    "strategy.probe=3",
    'strategy.replay={"kind": "success", "probed": true}',
    'strategy.budget={"kind": "shrinking", "above": 0.2, "low": 2}',
    'strategy.horizon={"kind": "longest_success", "margin": 1}',
    'credit.selections=[{"kind": "uncertain_turns", "share": 0.6}]',
    'loss.corrections=[{"kind": "token_tis", "cap": 1}]',
    "env.num_train_tasks=8",
)


@pytest.mark.slow
def test_all_parts_of_dart_act_and_resume(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    made = apply_overrides(from_scratch(num_steps=6, checkpoint_every=2), DART)
    train(made, run_dir)
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    groups = [r.group for step in recorded_steps(run_dir) for r in read_records(record_path(run_dir, step))]
    again = [m for group in groups for m in group.trajectories if m.replayed_step == BEFORE_RL]
    pool = [m for r in read_records(probe_record_path(run_dir)) for m in r.group.trajectories if m.success]
    assert again and {m.seed for m in again} <= {m.seed for m in pool}, "before any success of the run"
    assert sum(row["num_replayed"] for row in rows) >= len(again)
    assert {len(group.trajectories) for group in groups} > {4}, "some groups are smaller"
    assert any(row.get("turn_limit") for row in rows)
    assert all(row["credit/changed/uncertain_turns"] > 0 for row in rows)
    expected = weights(run_dir)
    drop_checkpoint(run_dir, 6)
    train(made, run_dir, resume=True)
    assert weights(run_dir) == expected
