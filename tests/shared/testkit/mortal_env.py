"""An environment to train on that kills, once each, the worker it is in or an engine, in the middle of an episode."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from agentgym import Message, register
from agentgym.types import Observation
from testkit.counting_env import Counting


class Mortal(Counting):
    """Counting; a file ``worker`` or ``engine`` in ``orders`` is taken away, and what it names is killed with -9.

    Args:
        orders: a folder.
    """

    def __init__(self, *, orders: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._orders = Path(orders)

    async def arespond(self, action: Message) -> str | Observation:
        if self.turn == 2:
            self._obey()
        return await super().arespond(action)

    def _obey(self) -> None:
        for order in sorted(self._orders.glob("kill-*")):
            try:
                order.rename(order.with_name(f"done-{order.name}"))
            except FileNotFoundError:  # another worker was faster
                continue
            os.kill(os.getpid() if order.name == "kill-worker" else _an_engine(), signal.SIGKILL)


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
