"""An environment that kills processes of its own training run in the middle of an episode, each once."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentgym import Message, register
from agentgym.types import Observation
from testkit.counting_env import Counting


class Mortal(Counting):
    """The counting environment, which follows orders given as files in the folder ``orders``.

    ``kill-worker`` kills the environment's process with signal 9, ``kill-engine`` an engine, and ``kill-NAME`` the
    process whose number is in ``NAME.pid``. ``wait-NAME`` makes the episode wait until a file ``NAME`` exists. An
    order that was carried out is renamed. If an order's file contains a path, the order waits until the path exists.

    Args:
        orders: the folder of orders.
    """

    def __init__(self, *, orders: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._orders = Path(orders)

    async def arespond(self, action: Message) -> str | Observation:
        if self.turn == 2:
            for order in sorted([*self._orders.glob("kill-*"), *self._orders.glob("wait-*")]):
                if self._is_taken(order):
                    await self._obey(*order.name.split("-", 1))
        return await super().arespond(action)

    def _is_taken(self, order: Path) -> bool:
        """Return True if this episode carries out the order now, False if it must wait or another worker was faster."""
        with suppress(FileNotFoundError):
            if os.path.exists(order.read_text() or self._orders):
                order.rename(order.with_name(f"done-{order.name}"))
                return True
        return False

    async def _obey(self, verb: str, name: str) -> None:
        while verb == "wait" and not (self._orders / name).exists():
            await asyncio.sleep(0.05)
        if verb == "kill":
            number = self._orders / f"{name}.pid"
            victim = {"worker": os.getpid, "engine": _an_engine}.get(name, lambda: int(number.read_text()))
            os.kill(victim(), signal.SIGKILL)


def _an_engine() -> int:
    """Return a Ray engine process of this cluster, whose processes write their logs into one folder."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, logs = (folder / "cmdline").read_bytes(), (folder / "fd" / "1").readlink().parent
        except OSError:
            continue
        if name.startswith(b"ray::EngineActor") and logs == Path("/proc/self/fd/1").readlink().parent:
            return int(folder.name)
    raise RuntimeError("there is no engine")


register("Mortal-v0", Mortal)
