"""Rubric scaffolds in training runs: who sees criteria, what counts, the same bits after a restart, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, weights

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.train import train

LINES = ["Add 1.", "Stop at the goal."]
SHOWN = f"strategy.guidance={json.dumps({'kind': 'rubric', 'text': chr(10).join(LINES), 'steps': 2, 'steepness': 3.0})}"
JUDGED = "judge.model=openai:http://x/v1"


@pytest.mark.slow
def test_criteria_fade_and_a_resumed_run_ends_in_the_same_weights(tmp_path: Path) -> None:
    made = apply_overrides(config(num_steps=4, checkpoint_every=2), [SHOWN, "model.max_context_tokens=400"])
    train(made, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    steps = recorded_steps(tmp_path / "run")
    groups = [[r.group for r in read_records(record_path(tmp_path / "run", step))] for step in steps]
    helped = [sum(not m.is_unaided for group in of_step for m in group.trajectories) for of_step in groups]
    assert helped == [9, 9, 6, 0], "of each of three groups 3, 3, 2 and 0 members"
    for of_step, row in zip(groups, rows, strict=True):
        members = [m for group in of_step for m in group.trajectories]
        assert row["num_hints"] == sum(bool(turn.hint) for m in members for turn in m.turns)
        own = [bool(m.success) for m in members if m.is_unaided]
        assert row["success"] == pytest.approx(sum(own) / len(own))
    first = [sorted({turn.hint.count("\n- ") for turn in m.turns}) for m in groups[0][0].trajectories]
    assert sorted(first) == [[0], [1], [1], [2]], "every turn of a member has the same criteria"
    expected = weights(tmp_path / "run")
    drop_checkpoint(tmp_path / "run", 4)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected


def test_criteria_are_the_guidances_own_or_the_judges() -> None:
    assert apply_overrides(config(), [SHOWN]).criteria == tuple(LINES)
    of_judge = [JUDGED, "judge.rubric=Is it short?\n\n Is it true? ", 'strategy.guidance={"kind": "rubric"}']
    assert apply_overrides(config(), of_judge).criteria == ("Is it short?", "Is it true?")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['strategy.guidance={"kind": "rubric"}'], "has no criteria to show"),
        (['strategy.guidance={"kind": "rubric"}', JUDGED], "has no criteria to show"),
        (['strategy.guidance={"kind": "rubric", "text": " \\n "}'], "has no criteria to show"),
        ([SHOWN, "loss.corrections=[]"], "hints train tokens that the policy would not have sampled"),
        (['strategy.guidance={"kind": "rubric", "text": "x", "steepness": 0}'], "steepness must be above 0"),
    ],
)
def test_what_a_rubric_cannot_go_with_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config(), overrides)
