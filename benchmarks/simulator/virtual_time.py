"""An event loop in virtual time: its clock jumps to the next event, so waiting takes no real time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_in_virtual_time(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a clock that starts at 0 and jumps to the next event.

    Code between two waits takes no virtual time. ``asyncio.get_running_loop().time()`` is the clock. The loop does not
    support threads, sockets and subprocesses. The order of events depends on the code alone.

    Raises:
        RuntimeError: every task waits for another, so there is no next event.

    Example:
        >>> async def nap() -> float:
        ...     await asyncio.sleep(3600)
        ...     return asyncio.get_running_loop().time()
        >>> run_in_virtual_time(nap())
        3600.0
    """
    with asyncio.Runner(loop_factory=_VirtualTimeLoop) as runner:
        return runner.run(main)


class _JumpingSelector(selectors.SelectSelector):
    """A selector that advances the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for another: none of them can continue")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class _VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s
