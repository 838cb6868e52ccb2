"""UFO over recorded episodes: the shaper finds in them the answers that the environment paid for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from testkit.tokenizers_for_tests import trained

from agentgym.check.policies import ScriptedEngine
from agentgym.credit.columns import turn_table
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.shapers.attempts import UfoOptions
from agentgym.engine import SamplingParams
from agentgym.envs.games.try_again import TryAgainEnv
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import ModelAgent
from agentgym.rollout.loop import run_episode
from agentgym.rollout.request import RolloutRequest
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.types import Task, Trajectory, TrajectoryGroup

TASK = Task(id="sum", split="train", seed=0, data={"question": "What is 3 + 4?", "answers": ["7"]})


def attempts(answers: Sequence[str]) -> Trajectory:
    tokenizer = trained(CHAT_TEMPLATE)
    renderer = ChatRenderer(tokenizer)
    left = list(answers)

    def answer(_: tuple[int, ...]) -> list[int]:
        return [*tokenizer.encode(left.pop(0), add_special_tokens=False), renderer.turn_end_ids[0]]

    agent = ModelAgent(ScriptedEngine(answer), renderer, SamplingParams(max_new_tokens=16), 1)
    request = RolloutRequest(task=TASK, make_agent=lambda *_: agent, seed=1)
    return asyncio.run(run_episode(TryAgainEnv(max_attempts=4), request))


@pytest.mark.parametrize(
    ("answers", "codes"),
    [
        (("7",), [0]),
        (("3", "4", "7"), [0, 1, 2]),
        (("3", "It is\n3", " ", "7"), [0, 0, -1, 2]),
        (("3", " ", " ", "3"), [0, -1, -1, 0]),
    ],
)
def test_the_shaper_pays_what_the_environment_paid(answers: tuple[str, ...], codes: list[int]) -> None:
    trajectory = attempts(answers)
    group = TrajectoryGroup(ordinal=0, task=TASK, trajectories=(trajectory, replace(trajectory, seed=2)))
    table = turn_table([group], ["answer"])
    assert table.answer is not None and table.answer.tolist() == codes * 2
    result = credit_groups([group], CreditConfig(estimator="grpo", shapers=(UfoOptions(least_success=None),)))
    assert result.table.reward[: len(codes)].sum() == pytest.approx(trajectory.reward)
