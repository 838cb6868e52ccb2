"""Runs whose groups hold demonstrations of the oracle: what is counted, what is trained, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.counting_runs import config, weights
from testkit.token_batches import sample

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.train import train

SHOWN = 'strategy.guidance={"kind": "demonstration"}'
RL_PLUS = (SHOWN, "loss.kind=rl_plus", "credit.estimator=dr_grpo")


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["loss.num_updates=2", "loss.num_epochs=2"]], ids=["one update", "several"])
def test_a_demonstration_joins_every_group_and_trains(more: list[str], tmp_path: Path) -> None:
    made = apply_overrides(config(num_steps=4, checkpoint_every=2), [*RL_PLUS, *more])
    train(made, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    groups = [
        r.group for step in recorded_steps(tmp_path / "run") for r in read_records(record_path(tmp_path / "run", step))
    ]
    assert {row["num_demonstrations"] for row in rows} == {3.0}, "one in each of three groups"
    assert {row["strategy/changed/demonstration"] for row in rows} == {3.0}
    assert all([m.is_demonstration for m in group.trajectories] == [False, False, False, True] for group in groups)
    shown = [group.trajectories[3] for group in groups]
    assert all(member.success for member in shown), "the oracle never fails"
    own = [m for group in groups for m in group.trajectories[:3]]
    sampled = sum(len(turn.completion.token_ids) for member in own for turn in member.turns)
    assert sum(row["sampled_tokens"] for row in rows) == sampled, "nobody sampled what the oracle did"
    for step, row in enumerate(rows):
        here = [m for group in groups[3 * step : 3 * step + 3] for m in group.trajectories[:3]]
        assert row["success"] == pytest.approx(np.mean([bool(m.success) for m in here]))
        assert row["logprob_gap_max"] < 1e-3 or row["updates_done"] > 1, "no gap to tokens that nobody sampled"
    (history,) = read_checkpoint(tmp_path / "run", 4)["plan"]["history"]
    assert sum(size for visits in history.values() for _, size, _ in visits) == len(own)
    expected = weights(tmp_path / "run")
    drop_checkpoint(tmp_path / "run", 4)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected


def test_demonstrated_tokens_are_compared_with_the_old_policy() -> None:
    rows = [sample(2, 3, logprob=-1.0), sample(2, 2, logprob=0.0, trajectory=1)]
    shown = [
        rows[0],
        type(rows[1])(**{**{f: getattr(rows[1], f) for f in rows[1].__slots__}, "is_demonstration": True}),
    ]
    (batch,) = build_batches(shown)
    old = torch.arange(5, dtype=torch.float32)
    expected = torch.where(batch["demonstrated"], old, torch.full((5,), -1.0))
    assert batch["demonstrated"].sum() == 2 and batch.with_old_policy_as_sampler(old)["logprob_rollout"].equal(expected)
    (plain,) = build_batches(rows)
    assert "demonstrated" not in plain.columns and plain.with_old_policy_as_sampler(old) is plain


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss.kind=rl_plus"], "rl_plus acts on demonstrated tokens, and there are none"),
        ([SHOWN, "loss.mode=bypass", "loss.corrections=[]"], "nobody sampled its tokens"),
        (['strategy.guidance={"kind": "demonstration", "num": 0}'], "demonstration has no effect"),
        ([SHOWN, 'strategy.branching={"kind": "arpo"}'], "both decide how a group is played"),
    ],
)
def test_what_demonstrations_cannot_go_with_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config(), overrides)
