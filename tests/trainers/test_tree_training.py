"""Runs on the household whose episodes form trees: what is counted, what trains, and that a resumed run is the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import weights

from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import Trajectory

SHARED = 'credit.modulators=[{"kind": "shared_prefix"}]'
REFUEL = (
    'strategy.branching={"kind": "pairs"}',
    "loss.kind=refuel",
    "loss.corrections=[]",
    "loss.num_updates=2",
    "credit.estimator=returns",
    "credit.norm=mean_norm",
)
TINY = (
    "num_steps=2",
    "checkpoint_every=1",
    "eval.num_episodes=2",
    "zero_variance_filter=off",
    "credit.invalid_penalty=0.1",
    "env.kwargs.max_turns=10",
    "group.group_size=6",
)
"""Groups without a success train, too; their advantages come from the penalty of invalid turns."""


@pytest.fixture(scope="module")
def beginner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model after its demonstrations, which calls the tools with about as many mistakes as not."""
    folder = tmp_path_factory.mktemp("beginner") / "run"
    train(apply_overrides(load_recipe("household-smoke"), ("num_steps=0", "sft.num_demos=480", *TINY[2:])), folder)
    return folder / "model"


def members_of(run_dir: Path) -> list[Trajectory]:
    records = [record for step in recorded_steps(run_dir) for record in read_records(record_path(run_dir, step))]
    return [member for record in records for member in record.group.trajectories]


def trained(model: Path, run_dir: Path, overrides: Sequence[str]) -> tuple[list[dict[str, Any]], list[Trajectory]]:
    """Train on the household at a tiny size, and then again from the first checkpoint; both end in the same weights."""
    own = (f"model.path={model}", "sft.num_demos=0", *TINY, *overrides)
    config = apply_overrides(load_recipe("household-smoke"), own)
    train(config, run_dir)
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    members, expected = members_of(run_dir), weights(run_dir)
    assert all(math.isfinite(row["loss"]) for row in rows)
    sampled = sum(turn.num_sampled_tokens for member in members for turn in member.own_turns)
    assert sum(row["sampled_tokens"] for row in rows) == sampled
    assert sum(row["num_branches"] for row in rows) == sum(member.parent >= 0 for member in members)
    assert config.strategy.branches == any(member.parent >= 0 for member in members)
    drop_checkpoint(run_dir, 2)
    (run_dir / "model" / "model.safetensors").unlink()
    train(config, run_dir, resume=True)
    assert weights(run_dir) == expected
    return rows, members


def total(rows: Sequence[dict[str, Any]], name: str) -> float:
    return sum(float(row[name]) for row in rows)


def check_cleaner(rows: Sequence[dict[str, Any]], members: Sequence[Trajectory]) -> None:
    corrected = [turn for member in members for turn in member.own_turns if turn.num_rescored_tokens]
    assert total(rows, "num_corrected") == len(corrected) > 0
    assert max(row["logprob_gap_max"] for row in rows) < 1e-3, "the trainer has the log-probabilities of the record"
    assert total(rows, "credit/changed/purified") > 0


def check_latr(rows: Sequence[dict[str, Any]], members: Sequence[Trajectory]) -> None:
    assert total(rows, "cut/pruned") == total(rows, "num_cut") > 0
    assert all(row["status/aborted"] == 0 for row in rows), "a stopped branch is no failure"
    assert len(members) == 2 * 2 * 6 and not any(member.is_stopped for member in members)


def check_cure(rows: Sequence[dict[str, Any]], members: Sequence[Trajectory]) -> None:
    continued = [turn for member in members for turn in member.own_turns if turn.num_copied_tokens]
    assert total(rows, "num_continued") == len(continued) > 0
    assert max(row["logprob_gap_max"] for row in rows) < 1e-3, "copied tokens are in the context they were sampled in"
    assert all(0 < turn.num_copied_tokens < len(turn.completion.token_ids) for turn in continued)


def check_refuel(rows: Sequence[dict[str, Any]], members: Sequence[Trajectory]) -> None:
    assert len(members) == 24 and total(rows, "num_branches") == 12
    assert all(row["loss"] > 0 for row in rows), "a mean of squares"
    assert all(row["grad_norm"] > 0 for row in rows)


def check_arrol(rows: Sequence[dict[str, Any]], members: Sequence[Trajectory]) -> None:
    assert total(rows, "cut/pruned") == total(rows, "num_cut") == 12 == len(members), "half of each group"
    assert all(row["status/aborted"] == 0 for row in rows) and total(rows, "cut_tokens") > 0
    assert all(member.is_unaided for member in members)


def check_deepsearch(rows: Sequence[dict[str, Any]], members: Sequence[Trajectory]) -> None:
    assert total(rows, "num_branches") == 2 * 2 * 4, "of six episodes two begin at the start"
    assert total(rows, "credit/changed/shared_prefix") > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "check"),
    [
        (('strategy.branching={"kind": "cleaner"}', 'credit.modulators=[{"kind": "purified"}]'), check_cleaner),
        (('strategy.branching={"kind": "latr", "share": 1.0, "by": "tokens", "min_distance": 0.7}',), check_latr),
        (
            ('strategy.branching={"kind": "deepsearch"}', 'credit.modulators=[{"kind": "shared_prefix"}]'),
            check_deepsearch,
        ),
        (('strategy.branching={"kind": "cure"}', SHARED), check_cure),
        (REFUEL, check_refuel),
        (('strategy.pruning={"kind": "arrol", "after": 3}',), check_arrol),
    ],
    ids=["cleaner", "latr", "deepsearch", "cure", "refuel", "arrol"],
)
def test_trees_train_on_the_household(
    beginner: Path, overrides: tuple[str, ...], check: Callable[[Any, Any], None], tmp_path: Path
) -> None:
    check(*trained(beginner, tmp_path / "run", overrides))
