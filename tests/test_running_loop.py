"""Synchronous calls where an event loop runs already, as in a notebook, and starts that fail."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit.counting_runs import config

import agentgym
from agentgym import Task, ToolEnv, tool
from agentgym.env.worker_thread import is_interrupted, run_coroutine
from agentgym.errors import UsageError
from agentgym.trainers.train import train


class Waits(ToolEnv):
    def start(self, task: Task) -> str:
        return "Go."

    @tool
    async def go(self) -> str:
        """Go."""
        await asyncio.sleep(0)
        return "Went."


def in_a_loop(work: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return work()

    return asyncio.run(main())


def test_a_step_of_async_tools() -> None:
    env = Waits()
    env.reset(seed=0)
    assert in_a_loop(lambda: env.step("go")[0][0].text) == "Went."
    assert env.step("go")[0][0].text == "Went."


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [("agentgym/WikiWorld-v0", {}), ("agentgym/AgentFlow-v0", {"env": "agentgym/Household-v0"})],
)
def test_environments_with_async_tools(env_id: str, kwargs: dict[str, Any]) -> None:
    def said() -> str:
        env = agentgym.make(env_id, **kwargs)
        env.reset(seed=0)
        return env.step(env.oracle())[0][0].text

    assert in_a_loop(said) == said()


def test_errors_come_through() -> None:
    async def fails() -> None:
        raise UsageError("no such thing")

    with pytest.raises(UsageError, match="no such thing"):
        in_a_loop(lambda: run_coroutine(fails()))


async def interrupted_wait(ended: list[type[BaseException]]) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    try:
        async with asyncio.timeout(20):
            await asyncio.Event().wait()
    except BaseException as error:
        ended.append(type(error))
        raise


def test_an_interrupt_cancels_the_call() -> None:
    """Jupyter raises ``KeyboardInterrupt`` in the thread that waits, while its event loop runs."""
    ended: list[type[BaseException]] = []

    def cell() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a kernel; asyncio.run has set its own
        with pytest.raises(KeyboardInterrupt):
            run_coroutine(interrupted_wait(ended))

    in_a_loop(cell)
    assert ended == [asyncio.CancelledError]


def test_what_awaits_nothing_sees_the_interrupt_too() -> None:
    """As a warm start does, which looks after each step."""
    seen: list[bool] = []

    async def computes() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        until = time.monotonic() + 20
        while not is_interrupted() and time.monotonic() < until:
            time.sleep(0.01)
        seen.append(is_interrupted())

    def cell() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            run_coroutine(computes())

    in_a_loop(cell)
    assert seen == [True]
    assert not is_interrupted()


def test_the_first_interrupt_of_a_script_with_its_own_loop_is_enough() -> None:
    """``asyncio.run`` cancels its task at the first Ctrl-C, and raises nothing in a call that blocks."""
    ended: list[type[BaseException]] = []

    with pytest.raises(KeyboardInterrupt):
        in_a_loop(lambda: run_coroutine(interrupted_wait(ended)))
    assert ended == [asyncio.CancelledError]


@pytest.mark.slow
def test_training(tmp_path: Path) -> None:
    short = replace(config(), num_steps=1)
    result = in_a_loop(lambda: train(short, tmp_path / "run"))
    assert (result.steps, (tmp_path / "run" / "model").is_dir()) == (1, True)


def test_a_failed_start_does_not_block_the_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise UsageError("the engine is not there")

    short = replace(config(), num_steps=0)
    with monkeypatch.context() as patched:
        patched.setattr("agentgym.trainers.run.run.Run.connect_engine", fails)
        with pytest.raises(UsageError, match="the engine is not there"):
            train(short, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(short, tmp_path / "run")
