"""Self-distillation: what the policy is shown, which tokens it scores, and that runs with it resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, weights
from testkit.made_groups import group, trajectory, turn
from testkit.tokenizers_for_tests import trained

from agentgym.errors import ConfigError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.context import FULL, Room
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.data.row import Row
from agentgym.trainers.losses.options import SelfDistillOptions
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.trainers.scoring.demonstrated import PromptStyle, demonstration_for, self_taught
from agentgym.trainers.scoring.tokens import ScoredTokens
from agentgym.trainers.train import train
from agentgym.types import Message, Trajectory

TASK = (Message("user", "Find the mug."),)


def style(window: int = 4000) -> PromptStyle:
    return PromptStyle(
        renderer=ChatRenderer(trained(CHAT_TEMPLATE)), context=FULL, tools=(), room=Room(window=window, completion=8)
    )


def member(*, success: bool = False, prompt_ids: tuple[int, ...] = (), **changes: Any) -> Trajectory:
    ids = prompt_ids or style().first_prompt(TASK)
    turns = [turn([*ids], [7, 8], index=0), turn([5], [9], index=1)]
    turns = [replace(turns[0], action=Message("assistant", "look")), turns[1]]
    return replace(trajectory(turns), success=success, observation=TASK, **changes)


def test_a_member_is_taught_by_another_success_the_oracles_first() -> None:
    failed, fresh = member(), member(success=True)
    replayed, oracle = member(success=True, replayed_step=2), member(success=True, is_demonstration=True)
    members = [failed, fresh, replayed, oracle]
    assert [demonstration_for(members, at) for at in range(4)] == [oracle, oracle, oracle, replayed]
    assert demonstration_for(members[:3], 0) is replayed and demonstration_for(members[:2], 0) is fresh
    assert demonstration_for(members[:2], 1) is None, "an episode does not teach itself"


def scored(monkeypatch: pytest.MonkeyPatch, members: list[Trajectory], **changes: Any) -> tuple[Any, Any, list[Row]]:
    """Return what was taught, the metrics and the questions; a token's log-probability is minus its position."""
    asked: list[Row] = []

    def score(model: object, questions: list[Row], **settings: Any) -> list[ScoredTokens]:
        asked.extend(questions)
        return [ScoredTokens((1 - one.positions).astype(np.float64), np.zeros(len(one.positions))) for one in questions]

    monkeypatch.setattr("agentgym.trainers.scoring.demonstrated.score", score)
    made, metrics = self_taught(
        None,  # type: ignore[arg-type]
        [group(*members)],
        style(**changes),
        SelfDistillOptions(max_chars=400),
        temperature=1.0,
        tokens_per_microbatch=100,
    )
    return made, metrics, asked


def test_sampled_tokens_stay_as_they_are_after_the_longer_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    made, metrics, (question,) = scored(monkeypatch, [member(), member(success=True)])
    assert metrics == {"self_distill/num_taught": 1.0, "self_distill/num_without": 1.0}
    assert [question.token_ids[at] for at in question.positions] == [7, 8, 9]
    *shown, _, _, _, _ = question.token_ids
    assert question.token_ids[len(shown) :] == (7, 8, 5, 9)
    told = trained(CHAT_TEMPLATE).decode(shown)
    assert "An episode of this task that succeeded:" in told and '"agent": "look"' in told and "Find the mug." in told
    assert list(made) == [(0, 0)]
    assert (-made[0, 0]).tolist() == [len(shown) - 1, len(shown), len(shown) + 2], "read before each token"


def test_episodes_without_a_demonstration_or_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scored(monkeypatch, [member(), member()])[1]["self_distill/num_without"] == 2
    _, metrics, asked = scored(monkeypatch, [member(), member(success=True)], window=40)
    assert metrics["self_distill/num_taught"] == 0 and not asked
    other = [member(prompt_ids=(1, 2, 3)), member(success=True)]
    assert scored(monkeypatch, other)[1]["self_distill/num_without"] == 2, "a prompt of another form"
    shown = [member(), member(success=True, is_demonstration=True)]
    assert scored(monkeypatch, shown)[1] == {"self_distill/num_taught": 1.0, "self_distill/num_without": 0.0}


@pytest.mark.slow
def test_a_run_learns_from_itself_and_resumes(tmp_path: Path) -> None:
    overrides = [
        'strategy.guidance={"kind": "demonstration"}',
        'loss.regularisers=[{"kind": "self_distill", "coef": 0.5, "max_chars": 300}]',
        "loss.weight=0",
        "zero_variance_filter=off",
        "model.max_context_tokens=700",
        "sft.num_demos=120",
    ]
    made = apply_overrides(config(num_steps=2, checkpoint_every=1), overrides)
    train(made, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    counts = [(row["self_distill/num_taught"], row["self_distill/num_without"]) for row in rows]
    assert all(taught > 0 and taught + without == 9 for taught, without in counts), "three of each group"
    assert all(row["grad_norm"] > 0 for row in rows)
    assert all(row["self_teacher_kl"] != 0 for row in rows)
    expected = weights(tmp_path / "run")
    drop_checkpoint(tmp_path / "run", 2)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected


ALONE = 'loss.regularisers=[{"kind": "self_distill"}]'


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([ALONE, "context.policy=window"], "set context.policy=full"),
        ([ALONE, "loss.weight=0"], "set zero_variance_filter=off"),
        (['loss.regularisers=[{"kind": "self_distill", "coef": 0}]'], "coef is 0"),
    ],
)
def test_what_self_distillation_cannot_go_with_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config(), overrides)
