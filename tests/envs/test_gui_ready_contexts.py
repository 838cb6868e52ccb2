"""Browser contexts that are opened ahead: no one who gives up loses one, and no failure is printed at the end."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("playwright")
from agentgym.envs.gui.pool import BrowserPool, PoolConfig
from agentgym.errors import EnvError


class Opening(BrowserPool):
    """A pool whose contexts open when the test lets them."""

    def __init__(self) -> None:
        super().__init__(PoolConfig(num_ready=1))
        self.may_open, self.num_opened, self.fault = asyncio.Event(), 0, ""

    async def _open(self, kind: Any) -> Any:
        self.num_opened += 1
        await self.may_open.wait()
        if self.fault:
            raise EnvError(self.fault)
        browser = SimpleNamespace(is_alive=True, num_episodes=0)
        return SimpleNamespace(browser=browser, tab=SimpleNamespace(is_dead=False))


def test_a_context_whose_taker_gives_up_goes_to_the_next() -> None:
    async def play() -> int:
        pool, kind = Opening(), Any
        pool.prepare(kind)  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.acquire(kind), 0.01)  # type: ignore[arg-type]
        pool.may_open.set()
        await pool.acquire(kind)  # type: ignore[arg-type]
        return pool.num_opened

    assert asyncio.run(play()) == 1


def test_a_failure_that_nobody_waits_for_is_not_printed() -> None:
    gc.collect()  # what earlier tests left: clients that are closed when they are collected, in the loop that then runs
    printed: list[Any] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
        pool = Opening()
        pool.fault = "the browser is gone"
        pool.prepare(Any)  # type: ignore[arg-type]
        pool.may_open.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pool._ready.clear()
        gc.collect()

    asyncio.run(play())
    assert printed == []
