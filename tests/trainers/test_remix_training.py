"""ReMix: groups of earlier steps are trained again, until the policy so far becomes the base and data are fresh."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.counting_runs import config, weights

from agentgym.errors import ConfigError, CorruptDataError
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.record import (
    GroupRecord,
    read_json_lines,
    read_records,
    record_path,
    recorded_steps,
    write_records,
)
from agentgym.rollout.replay import RecordRef, Replayed, read_again, swapped
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.remix import RemixOptions, remix
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.train import train
from agentgym.types import Task, TrajectoryGroup

UNTIL = 4
REMIX = (
    'strategy.replay={"kind": "remix", "share": 0.4, "window": 2}',
    "loss.num_epochs=2",
    "credit.estimator=asymre",  # which gives groups of equal returns a gradient, too
    'loss.regularisers=[{"kind": "kl_convex", "restart_at": 4}]',
    'schedules=[{"key": "strategy.replay.share", "from": 0.4, "to": 0, "steps": 4, "form": "step"}, '
    '{"key": "loss.num_epochs", "from": 2, "to": 1, "steps": 4, "form": "step"}]',
)


def group(ordinal: int) -> TrajectoryGroup:
    return TrajectoryGroup(ordinal=ordinal, task=Task(id="t", split="train", seed=0), trajectories=())


def test_the_share_of_replayed_groups_is_that_of_what_trains() -> None:
    rng = np.random.default_rng(0)
    assert len(remix([1] * 20, 6, rng, RemixOptions(share=0.4))) == 4, "4 of 10"
    assert len(remix([1] * 20, 6, rng, RemixOptions(share=0.75))) == 18, "18 of 24"
    assert remix([5, 4, 3, 2, 1], 6, rng, RemixOptions(share=0.5, window=2)) == [3, 4], "no more than there are"
    assert remix([1] * 20, 6, rng, RemixOptions(share=0.0)) == [] == remix([], 6, rng, RemixOptions())


def test_groups_are_kept_for_the_window_and_drawn_by_the_seed() -> None:
    made = StrategyConfig(replay=RemixOptions(share=0.5, window=2))
    one, other = (EnvPlanner(made, [Task(id="t", split="train", seed=0)], 4, seed=3) for _ in range(2))
    for planner in (one, other):
        assert planner.again(2, 0) == []
        for step in range(4):
            for at in range(2):
                planner.store(group(2 * step + at), 0, step)
    assert one.groups == [(2, 4), (2, 5), (3, 6), (3, 7)]
    assert one.again(2, 4) == other.again(2, 4) and len(one.again(2, 4)) == 2
    assert {place for step in range(4, 30) for place in one.again(2, 4)} <= {RecordRef(s, o, 0) for s, o in one.groups}


def test_a_group_that_is_gone_from_its_record_is_named(tmp_path: Path) -> None:
    write_records(record_path(tmp_path, 2), [GroupRecord(group=group(7))])
    stored = read_again([group(9)], Replayed(groups=(RecordRef(2, 7, 0),)), tmp_path)
    (again, fresh) = swapped([group(9)], stored)
    assert (again.ordinal, fresh.ordinal) == (7, 9)
    with pytest.raises(CorruptDataError, match="has no group 8, which is to be trained again"):
        read_again([group(9)], Replayed(groups=(RecordRef(2, 8, 0),)), tmp_path)


@pytest.mark.slow
def test_replay_stops_and_the_policy_so_far_becomes_the_base(tmp_path: Path) -> None:
    made = apply_overrides(config(num_steps=6, checkpoint_every=2), REMIX)
    train(made, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    sizes = [len(read_records(record_path(tmp_path / "run", step))) for step in recorded_steps(tmp_path / "run")]
    assert sizes == [3, 5, 5, 5, 3, 3], "two of five, and none after the switch"
    assert [row["num_replayed"] > 0 for row in rows] == [False, True, True, True, False, False]
    assert [row["updates_done"] for row in rows] == [2, 2, 2, 2, 1, 1]
    assert rows[3]["kl_convex"] > 0 and rows[UNTIL]["kl_convex"] == pytest.approx(0, abs=1e-9), "its own base"
    assert rows[UNTIL + 1]["kl_convex"] > 0
    ages = [
        step - member.replayed_step
        for step in recorded_steps(tmp_path / "run")
        for record in read_records(record_path(tmp_path / "run", step))
        for member in record.group.trajectories
        if member.replayed_step is not None
    ]
    assert set(ages) <= {1, 2}
    expected, held = weights(tmp_path / "run"), read_checkpoint(tmp_path / "run", 6)["plan"]
    drop_checkpoint(tmp_path / "run", 6)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected and read_checkpoint(tmp_path / "run", 6)["plan"] == held


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([REMIX[0], "loss.corrections=[]"], "replay train tokens"),
        (['strategy.replay={"kind": "remix", "share": 0}'], "remix has no effect"),
        (
            ['loss.regularisers=[{"kind": "kl_convex"}, {"kind": "distill", "teacher": "t"}]'],
            "each need a second model",
        ),
    ],
)
def test_what_remix_cannot_go_with_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config(), overrides)
