"""SCoRe: the first attempt is held while the second learns, then both are paid with a bonus for corrections."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, from_scratch, weights

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.train import train

SWITCH = 3
SCORE = (
    "env.id=agentgym/TryAgain-v0",
    "env.kwargs.revise=true",
    "env.kwargs.max_attempts=2",
    "env.kwargs.says=There may be an error. Answer again.",
    "sft.noise=0.5",
    "credit.estimator=dr_grpo",
    'credit.shapers=[{"kind": "score"}]',
    'loss.regularisers=[{"kind": "kl_first", "coef": 0.1}]',
    "schedules=["
    + ", ".join(
        json.dumps({"key": key, "from": start, "to": end, "steps": SWITCH, "form": "step"})
        for key, start, end in (
            ("credit.shapers.score.first_weight", 0, 1),
            ("credit.shapers.score.alpha", 0, 10),
            ("loss.regularisers.kl_first.coef", 0.1, 0),
        )
    )
    + "]",
)


def settings(folder: Path) -> TrainConfig:
    path = folder / "sums.jsonl"
    rows = [{"question": f"What is {a} + {b}?", "answers": [str(a + b)]} for a in range(4) for b in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    made = apply_overrides(from_scratch(num_steps=5, checkpoint_every=1), [*SCORE, f"env.kwargs.data={path}"])
    return replace(made, zero_variance_filter="off")


@pytest.mark.slow
def test_the_stages_follow_each_other_and_resume(tmp_path: Path) -> None:
    made = settings(tmp_path)
    train(made, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["schedule/credit.shapers.score.alpha"] for row in rows] == [0, 0, 0, 10, 10]
    assert [row["schedule/loss.regularisers.kl_first.coef"] for row in rows] == [0.1, 0.1, 0.1, 0, 0]
    assert all("credit/correction_mean" in row and "kl_first" in row for row in rows)
    assert rows[0]["num_turns"] == 2, "every episode has both attempts"
    assert any(row["grad_norm"] > 0 for row in rows)
    expected = weights(tmp_path / "run")
    drop_checkpoint(tmp_path / "run", 5)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected


def test_a_shaper_without_its_stages_is_a_configuration_and_idle_ones_are_refused() -> None:
    with pytest.raises(ConfigError, match="score: alpha is 0 and first_weight 1"):
        apply_overrides(config(), ['credit.shapers=[{"kind": "score", "alpha": 0}]'])
