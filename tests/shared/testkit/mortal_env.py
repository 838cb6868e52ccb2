"""An environment to train on that kills, once each, a process of its run in the middle of an episode."""

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
    """Counting that kills with -9 what a file in ``orders`` names, and renames the file.

    ``kill-worker`` names the process of the environment, ``kill-engine`` an engine, and ``kill-NAME`` the process whose
    number is in ``NAME.pid``. ``wait-NAME`` lets the episode wait until there is a file ``NAME``. What is written in a
    file is a path, before which the file is left alone.

    Args:
        orders: a folder.
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
        """Return True if it is up to this episode; False also where another worker was faster."""
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
    """A process of Ray's that is called so, of the same cluster as this one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, parent = (
                (folder / "cmdline").read_bytes(),
                (folder / "stat").read_text().rpartition(")")[2].split()[1],
            )
        except OSError:
            continue
        if name.startswith(b"ray::EngineActor") and int(parent) == os.getppid():
            return int(folder.name)
    raise RuntimeError("there is no engine")


register("Mortal-v0", Mortal)
