"""Semi-online training in a browser: a recorded episode of WebForms, with the agent wrong at one turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from testkit.gui_pages import NEEDS_CHROMIUM

from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.semi_online.traces import record_traces
from agentgym.registry import make
from agentgym.rollout.agent import ScriptedAgent
from agentgym.rollout.loop import run_episode
from agentgym.rollout.request import EpisodeLimits, RolloutRequest
from agentgym.types import Message, Observation, Status, ToolCall

pytestmark = NEEDS_CHROMIUM
FORMS = "agentgym/WebForms-v0"
KIND = {"kinds": ["form"]}


def test_a_recorded_form_is_filled_in_with_one_patch(tmp_path: Path) -> None:
    forms = make(FORMS, **KIND)
    (recording,) = record_traces(forms, forms.tasks("train")[:1], tmp_path / "forms.jsonl")
    forms.close()
    assert recording.rewards[-1] == 1.0
    env = make("agentgym/SemiOnline-v0", env=FORMS, env_kwargs=KIND, traces=tmp_path / "forms.jsonl")
    wrong = Message("assistant", "", (ToolCall("scroll", {"direction": "down"}, "7"),))
    said: list[Observation] = []

    def choose(seen: Observation) -> Message:
        said.append(seen)
        return wrong if len(said) == 2 else env.oracle()

    async def play() -> None:
        task = env.tasks("train")[0]
        limits = EpisodeLimits(reset_timeout_s=300)
        request = RolloutRequest(task=task, make_agent=lambda *_: ScriptedAgent(choose), limits=limits)
        trajectory = await run_episode(env, request)
        assert trajectory.status is Status.COMPLETED, trajectory.error
        assert [turn.played is not None for turn in trajectory.turns] == [
            turn == 1 for turn in range(len(recording.actions))
        ]
        assert trajectory.turns[1].played == forms.parse_action(recording.actions[1])
        assert trajectory.success is False
        assert all(turn.reward > 0.99 for turn in trajectory.turns if turn.played is None)
        await env.aclose()

    try:
        asyncio.run(play())
    finally:
        close_browsers()
