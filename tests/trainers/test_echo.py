"""ECHO: what of an episode is predicted, the gradient that it adds, and runs that learn it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.checkpoints import drop_checkpoint
from testkit.corridors import Corridor
from testkit.counting_runs import config, weights
from testkit.drawing_engine import TASK, DrawingEngine
from testkit.tokenizers_for_tests import HERMES, THINKING

from agentgym.errors import ConfigError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.loop import run_episode
from agentgym.rollout.record import read_json_lines
from agentgym.rollout.request import RolloutRequest
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.trainers.phases.added_loss import auxiliary_of
from agentgym.trainers.sft.rows import reply_rows
from agentgym.trainers.train import train
from agentgym.types import Completion, FinishReason, Message, Segment, Status, Trajectory, TrajectoryGroup, Turn


def played(template: str = CHAT_TEMPLATE) -> tuple[Trajectory, DrawingEngine]:
    engine = DrawingEngine(("move: right", "move: left", "<think>hm</think>move: right"), template)
    request = RolloutRequest(task=TASK, make_agent=engine.agents(), seed=5)
    return asyncio.run(run_episode(Corridor(), request)), engine


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, HERMES, THINKING], ids=["plain", "hermes", "thinking"])
def test_answers_are_predicted_once_and_nothing_else(template: str) -> None:
    whole, engine = played(template)
    rows = reply_rows([whole], engine.renderer)
    predicted = [
        engine.text(
            [token for token, weight in zip(row.token_ids, row.over_tokens("loss_weight"), strict=True) if weight]
        )
        for row in rows
    ]
    answers = [reply.text for turn in whole.turns[:-1] for reply in turn.replies]
    assert len(answers) > 3
    assert "".join(predicted).replace(" ", "") == "".join(answers).replace(" ", "")
    assert not any(row.columns["loss_weight"][row.columns["is_sampled"]].any() for row in rows), (
        "no action is predicted"
    )


def test_what_was_copied_or_is_old_teaches_once() -> None:
    whole, engine = played()

    def num_of(one: Trajectory) -> int:
        return sum(int(row.columns["loss_weight"].sum()) for row in reply_rows([one], engine.renderer))

    branch = replace(whole, parent=0, branch_turn=2)
    first_two = sum(len(engine.renderer.token_spans(turn.prompt_ids)[1]) for turn in whole.turns[1:3])
    assert 0 < num_of(branch) < num_of(whole) and num_of(whole) - num_of(branch) <= first_two
    assert num_of(replace(whole, replayed_step=3)) == 0
    assert num_of(replace(whole, branch_turn=len(whole.turns) - 1)) == 0


def test_the_gradient_is_that_of_the_mean_cross_entropy(small_model: Any) -> None:
    def turn(index: int, prompt: tuple[int, ...], sampled: tuple[int, ...], reply: str) -> Turn:
        completion = Completion(
            token_ids=sampled, logprobs=(0.0,) * len(sampled), policy_versions=(0,) * len(sampled),
            finish_reason=FinishReason.STOP,
        )  # fmt: skip
        said = Message("assistant", "a")
        return Turn(
            index=index, prompt_ids=prompt, completion=completion, action=said, replies=(Message("user", reply),)
        )

    class Letters(ChatRenderer):
        """Tokens are letters: token 1 is a."""

        def __init__(self) -> None:
            pass

        def token_spans(self, token_ids: Any) -> tuple[str, tuple[tuple[int, int], ...]]:
            return "".join(chr(96 + token) for token in token_ids), tuple((at, at + 1) for at in range(len(token_ids)))

    turns = (turn(0, (20, 21), (7, 8), "cd"), turn(1, (3, 4, 22), (9,), "e"), turn(2, (5, 22), (7,), "x"))
    one = Trajectory(task=TASK, env_id="x", status=Status.COMPLETED, segments=(Segment(turns),), seed=0)
    group = TrajectoryGroup(ordinal=0, task=TASK, trajectories=(one,))
    settings = LossConfig(echo=0.5)
    part, options = settings.parts()[-1]
    step = auxiliary_of(part, options, [group], settings, small_model, Letters())
    step.add_gradient(0)
    found = {name: p.grad.clone() for name, p in small_model.named_parameters() if p.grad is not None}
    small_model.zero_grad()
    ids = torch.tensor([one.segments[0].token_ids])
    logprobs = small_model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
    places = [4, 5, 8]  # c, d and e
    loss = -torch.stack([logprobs[at - 1, ids[0, at]] for at in places]).mean()
    (0.5 * loss).backward()  # type: ignore[no-untyped-call]
    for name, parameter in small_model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-6, rtol=1e-4)
    assert step.metrics() == {"echo/weight": 0.5, "echo/loss": pytest.approx(loss.item(), abs=1e-5)}


def test_a_run_learns_what_its_environment_answers(tmp_path: Path) -> None:
    made = apply_overrides(config(), ["loss.echo=1", "optimizer.lr=3e-3"])
    train(made, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    losses = [row["echo/loss"] for row in rows]
    assert all(row["echo/weight"] == 1 for row in rows) and losses[-1] < losses[0]
    expected = weights(tmp_path / "run")
    drop_checkpoint(tmp_path / "run", 6)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["loss.echo=-1"], "at least 0"),
        (["loss.echo=0.1", "context.policy=window"], "set context.policy=full"),
        (["loss.weight=0"], "or an auxiliary loss"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        apply_overrides(config(), overrides)
