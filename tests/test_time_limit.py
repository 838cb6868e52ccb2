"""Time limits in the main thread: what they interrupt, and what they leave as it was."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from agentgym.check.policies import random_action
from agentgym.env.env import Env
from agentgym.env.time_limit import Limited, time_limit
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import HungError
from agentgym.evals.policies import scripted
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import EpisodeLimits
from agentgym.tool import tool
from agentgym.types import Status, Task, TrajectoryGroup

FOR_EVER_S = 3600.0


def spin() -> None:
    while True:
        pass


def swallow() -> None:
    with suppress(HungError):
        time.sleep(FOR_EVER_S)
    time.sleep(FOR_EVER_S)


@pytest.mark.parametrize("hang", [lambda: time.sleep(FOR_EVER_S), spin, threading.Event().wait])
def test_what_hangs_is_interrupted_where_it_is(hang: Any) -> None:
    before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)
    with pytest.raises(HungError, match=r"^the step: not done after 0\.05 s, at .*\.py:\d+ in "):
        with time_limit(0.05, "the step"):
            hang()
    assert (signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_code_that_swallows_the_error_gets_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym.env.time_limit.AGAIN_S", 0.05)
    with pytest.raises(HungError), time_limit(0.05, "the step"):
        swallow()


def test_a_limit_inside_another() -> None:
    with pytest.raises(HungError, match=r"^outer: not done after 0\.2 s"):
        with time_limit(0.2, "outer"):
            with time_limit(FOR_EVER_S, "inner"):
                pass
            time.sleep(FOR_EVER_S)


def test_other_threads_have_no_limit() -> None:
    said: list[str] = []

    def work() -> None:
        with time_limit(1e-6, "the step"):
            said.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == ["done"]


def test_waiting_for_others_is_not_limited() -> None:
    async def steps() -> list[str]:
        await asyncio.to_thread(time.sleep, 0.1)
        said = ["waited"]
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except TimeoutError:
            said.append("timed out")
        return said

    async def play() -> list[str]:
        return await Limited(steps(), 0.05, "the step")

    assert asyncio.run(play()) == ["waited", "timed out"]


def hanging_env() -> type[Env]:
    class Hangs(ToolEnv):
        max_turns = 2

        def start(self, task: Task) -> str:
            return "Press."

        @tool
        def press(self) -> str:
            """Press the button."""
            threading.Event().wait()
            return "Pressed."

        @tool(timeout_s=0.05)
        def pull(self) -> str:
            """Pull the lever."""
            threading.Event().wait()
            return "Pulled."

    return Hangs


def group_of(env_class: type[Env]) -> TrajectoryGroup:
    """Play a group of four episodes whose steps may take 0.1 s."""

    async def play() -> TrajectoryGroup:
        pool = EnvPool(env_class, 4)
        limits = EpisodeLimits(step_timeout_s=0.1)
        config = GroupConfig(group_size=4, min_valid=1, max_retries=0, max_failure_rate=1.0, limits=limits)
        tasks = [(0, env_class().tasks("train")[0])]
        (group,) = await run_groups(tasks, pool, scripted(random_action), config, seed=0)
        await pool.close()
        return group

    return asyncio.run(play())


def test_a_tool_that_hangs_costs_its_episode_and_nothing_else() -> None:
    env_class = hanging_env()
    group = group_of(env_class)
    assert [trajectory.status for trajectory in group.trajectories] == [Status.TIMEOUT] * 4
    assert any("Hangs turn 1: not done after 0.1 s, at " in str(t.error) for t in group.trajectories)
    assert env_class.is_blocking  # further hangs leave the loop free


def test_a_coroutine_that_hangs_is_named_with_its_line() -> None:
    class Hangs(ToolEnv):
        def start(self, task: Task) -> str:
            return "Press."

        @tool
        async def press(self) -> str:
            """Press the button."""
            await self.wait()
            return "Pressed."

        async def wait(self) -> None:
            await asyncio.sleep(FOR_EVER_S)

    env = Hangs()
    env.reset(seed=0)
    line = Hangs.wait.__code__.co_firstlineno + 1
    with pytest.raises(HungError, match=rf"at \S*test_time_limit\.py:{line} in wait$"), time_limit(0.1, "the step"):
        env.step("press")
    errors = {str(trajectory.error) for trajectory in group_of(Hangs).trajectories}
    if sys.version_info >= (3, 11, 4):  # Python 3.11.2 has no frames of the cancelled step left
        assert all(error.endswith(f"test_time_limit.py:{line})") for error in errors), errors


def test_a_tools_own_limit_holds_in_every_step() -> None:
    env = hanging_env()()
    env.reset(seed=0)
    with pytest.raises(HungError, match=r"Hangs pull: not done after 0\.05 s"):
        env.step("pull")
