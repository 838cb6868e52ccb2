"""Feedback by a teacher: a user message after turns that earned nothing, which stays in the conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, weights
from testkit.fake_openai import FakeOpenAI, completion

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.judges.teacher import question, read_hint
from agentgym.trainers.train import train
from agentgym.types import Message, Trajectory, Turn


def settings(server: FakeOpenAI, *more: str) -> TrainConfig:
    guidance = {"kind": "feedback", "model": f"openai:{server.url}?model=m&num_tries=1", "target": 1.0, "most": 1}
    return apply_overrides(
        config(num_steps=3, checkpoint_every=1),
        [f"strategy.guidance={json.dumps(guidance)}", "env.num_train_tasks=5", "engine.batch_invariant=true", *more],
    )


def members(run_dir: Path) -> list[Trajectory]:
    steps = recorded_steps(run_dir)
    return [m for step in steps for r in read_records(record_path(run_dir, step)) for m in r.group.trajectories]


def test_the_question_is_about_the_last_turn_and_its_answer_has_a_key_of_its_own() -> None:
    turn = Turn(index=0, action=Message("assistant", "7"), replies=(Message("user", "Try again."),))
    system, user = question([], (Message("user", "3 + 3?"),), [turn], 4000, "feedback")
    assert "The last turn earned nothing." in str(system["content"]) and '{"feedback": "' in str(user["content"])
    assert read_hint('{"feedback": "Count again."}', "feedback") == "Count again."
    with pytest.raises(ValueError, match="the answer has no feedback"):
        read_hint('{"hint": "Count again."}', "feedback")


@pytest.mark.slow
def test_feedback_follows_turns_that_earned_nothing_and_resumes(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda request: completion(json.dumps({"feedback": "add: 1"})))
    made = settings(server)
    train(made, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    played = members(tmp_path / "run")
    commented = [(m, at) for m in played for at, turn in enumerate(m.turns) if turn.feedback]
    assert commented and sum(row["num_feedback"] for row in rows) == len(commented)
    assert sum(row["strategy/changed/feedback"] for row in rows) == len(commented)
    for member, at in commented:
        turn = member.turns[at]
        assert turn.reward <= 0 and turn.replies[-1] == Message("user", "Feedback: add: 1")
        assert sum(bool(one.feedback) for one in member.turns) == 1 and not member.is_unaided, "one an episode"
    followed = [m.turns[at + 1].prompt_ids for m, at in commented if at + 1 < len(m.turns)]
    plain = [
        t.prompt_ids for m in played for before, t in zip(m.turns, m.turns[1:], strict=False) if not before.feedback
    ]
    assert followed and min(map(len, followed)) > min(map(len, plain)), "it is in the prompts that are trained"
    assert not any(row["num_hints"] for row in rows)
    expected, num_asked = weights(tmp_path / "run"), len(server.requests)
    drop_checkpoint(tmp_path / "run", 3)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected and len(server.requests) == num_asked


@pytest.mark.slow
def test_a_teacher_that_fails_leaves_replies_as_they_are(serve: Any, tmp_path: Path) -> None:
    train(settings(serve(lambda request: completion("Hm."))), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert sum(row["teacher/num_failed"] for row in rows) > 0 and not any(row["num_feedback"] for row in rows)
    assert all(member.status.is_evidence and member.is_unaided for member in members(tmp_path / "run"))


def test_feedback_needs_a_teacher_and_no_correction() -> None:
    with pytest.raises(ConfigError, match="feedback: needs the model that writes hints"):
        apply_overrides(config(), ['strategy.guidance={"kind": "feedback"}'])
    given = 'strategy.guidance={"kind": "feedback", "model": "openai:http://x/v1"}'
    assert not apply_overrides(config(), [given, "loss.corrections=[]"]).strategy.off_policy
