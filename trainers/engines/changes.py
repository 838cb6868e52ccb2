"""A condition variable for one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """A condition variable: tasks that change state notify, and tasks that wait check their condition again."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiting tasks, because the state has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds, checked at every change; return False if it does not hold in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
