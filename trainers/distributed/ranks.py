"""The processes that train one model together, started by torchrun; one process alone is a team of one.

The first rank plays: it alone has the engine, the environments, the folder and the screen. What it plays it sends to
all, and all train on it, each on its share of the rows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from agentgym.errors import RunStoppedError

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of a run.

    Example:
        >>> ranks = Ranks()
        >>> ranks.is_main, ranks.share_of([5, 6, 7]), ranks.gathered(4)
        (True, [5, 6, 7], [4])
    """

    rank: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that plays, logs and saves."""
        return self.rank == 0

    def share_of(self, items: list[Value]) -> list[Value]:
        """Every so-many-th of the items; shares differ in number by one at most."""
        return items[self.rank :: self.count]

    def num_each(self, num_items: int) -> int:
        """The largest share: how often all ranks have to go through the model together."""
        return -(-num_items // self.count)

    def gathered(self, value: Value) -> list[Value]:
        """The value of every rank, in order of rank."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    async def from_main(self, make: Callable[[], Awaitable[Value]]) -> Value:
        """What the first rank makes, at all ranks. What it fails with stops the others.

        Raises:
            RunStoppedError: on the others, if the first rank failed.
        """
        if self.count == 1:
            return await make()
        if not self.is_main:
            failure, value = await asyncio.to_thread(_broadcast, None)
            if failure:
                raise RunStoppedError(f"rank 0 stopped: {failure}")
            return value  # type: ignore[no-any-return]
        try:
            value = await make()
        except BaseException as error:
            await asyncio.to_thread(_broadcast, (f"{type(error).__name__}: {error}", None))
            raise
        await asyncio.to_thread(_broadcast, ("", value))
        return value


def _broadcast(value: Any) -> Any:
    holder = [value]
    dist.broadcast_object_list(holder, src=0)
    return holder[0]


def join_ranks() -> Ranks:
    """The team that torchrun started this process in, by its environment variables; else a team of one."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        return Ranks()
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return Ranks(dist.get_rank(), count)


def leave_ranks() -> None:
    """Say goodbye to the other ranks, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()
