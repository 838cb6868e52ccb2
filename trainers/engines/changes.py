"""Waiting, in one event loop, for something to become true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Those who change something say so, and those who wait look again."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Return True if it came true in time; looked at whenever something changes."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
