"""The processes that train one model together, started by torchrun or as Ray actors; one alone is a team of one.

Either every rank plays its share of the episodes, or the first one plays all of them (``ranks.rollouts``). All get what
was played and train on it, each on its share of the rows. The folder and the screen are the first rank's.

Three groups connect the ranks. Tensors travel in the default group, over NCCL between GPUs, where all ranks meet at
once. Objects travel in a group of their own, over gloo. There the other ranks may wait for hours while the first one
plays, which NCCL would take for a hang. A third group, over gloo too, is for the thread that writes checkpoints.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from agentgym.errors import RunStoppedError, UsageError
from agentgym.trainers.config.ranks import RanksConfig
from agentgym.trainers.distributed.devices import on_this_device

Value = TypeVar("Value")
Share = list[tuple[int, int]]
"""Indices of a rank's pieces of work, each with the factor of its loss."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of a run.

    Example:
        >>> ranks = Ranks()
        >>> ranks.is_main, ranks.share(2), ranks.gathered(4), ranks.joined([5, 6], 2)
        (True, [(0, 1), (1, 1)], [4], [5, 6])
    """

    rank: int = 0
    count: int = 1
    config: RanksConfig = RanksConfig()
    waiting: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)
    """The gloo group that objects travel in; None for one rank."""
    aside: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)
    """Another such group, for a thread that works beside the one that trains; None for one rank."""

    @property
    def is_main(self) -> bool:
        """True on the rank that logs and saves."""
        return self.rank == 0

    def beside(self) -> Ranks:
        """Return the same ranks for a thread beside the one that trains: objects travel in a group of their own."""
        return replace(self, waiting=self.aside)

    def share(self, num_items: int) -> Share:
        """Return this rank's part of ``num_items`` pieces of work, by index, each with a factor for its loss.

        FSDP takes the mean of the ranks' gradients where the sum is wanted, so the factor is the number of ranks. All
        ranks must go through the model equally often: one with fewer pieces takes the first once more, with factor 0.
        """
        mine = [(index, self.count) for index in range(self.rank, num_items, self.count)]
        return mine + [(0, 0)] * (-(-num_items // self.count) - len(mine))

    def joined(self, made: Sequence[Value], num_items: int) -> list[Value]:
        """Return what all ranks made of their shares, in the order of the pieces; all ranks must call.

        Args:
            made: one value for each piece of :meth:`share`, without memory of a GPU.
        """
        held = self.gathered(list(made))
        return [held[index % self.count][index // self.count] for index in range(num_items)]

    def gathered(self, value: Value) -> list[Value]:
        """The value of every rank, in order of rank.

        Raises:
            RunStoppedError: another rank is gone, or did not come in time.
        """
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        self._exchange(lambda: dist.all_gather_object(values, value, group=self.waiting))
        return values

    def of_first(self, value: Value | None) -> Value:
        """Return the first rank's value at all ranks; all must call.

        Args:
            value: of the first rank; those of others do not count.

        Raises:
            RunStoppedError: the first rank is gone, or did not come in time.
        """
        found: Any = value if self.count == 1 else self._broadcast(value)
        return found  # type: ignore[no-any-return]

    def meet(self) -> None:
        """Return when all ranks have come here.

        Raises:
            RunStoppedError: another rank is gone, or did not come in time.
        """
        self.gathered(None)

    async def from_main(self, make: Callable[[], Awaitable[Value]]) -> Value:
        """Return what the first rank makes, on all ranks. If it fails, all stop.

        Raises:
            RunStoppedError: on the others, if the first rank failed, is gone, or took longer than
                ``ranks.wait_timeout_s``.
        """
        if self.count == 1:
            return await make()
        broadcast = on_this_device(self._broadcast)
        if not self.is_main:
            failure, value = await asyncio.to_thread(broadcast, None)
            if failure:
                raise RunStoppedError(f"rank 0 stopped: {failure}")
            return value  # type: ignore[no-any-return]
        try:
            value = await make()
        except BaseException as error:
            await asyncio.to_thread(broadcast, (f"{type(error).__name__}: {error}", None))
            raise
        await asyncio.to_thread(broadcast, ("", value))
        return value

    async def from_all(self, make: Callable[[], Awaitable[Value]]) -> list[Value]:
        """Return what every rank makes, in order of rank, at all ranks. If one fails, all stop.

        Raises:
            RunStoppedError: on the others, if a rank failed, is gone, or took longer than ``ranks.wait_timeout_s``.
        """
        if self.count == 1:
            return [await make()]
        gather = on_this_device(self.gathered)
        try:
            value = await make()
        except BaseException as error:
            await asyncio.to_thread(gather, (f"{type(error).__name__}: {error}", None))
            raise
        made: list[Any] = await asyncio.to_thread(gather, ("", value))
        for rank, (failure, _) in enumerate(made):
            if failure:
                raise RunStoppedError(f"rank {rank} stopped: {failure}")
        return [value for _, value in made]

    def _broadcast(self, value: object) -> Any:
        holder = [value]
        self._exchange(lambda: dist.broadcast_object_list(holder, src=0, group=self.waiting))
        return holder[0]

    def _exchange(self, collective: Callable[[], None]) -> None:
        try:
            collective()
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise RunStoppedError(
                f"rank {self.rank} lost the other ranks: one ended, or took longer than "
                f"ranks.wait_timeout_s={self.config.wait_timeout_s:g}; see the others' first error ({reason})"
            ) from error


def join_ranks(config: RanksConfig = RanksConfig()) -> Ranks:  # noqa: B008  (frozen)
    """Return the ranks that torchrun or Ray started with this process; a process started otherwise is alone.

    Raises:
        UsageError: this machine has fewer GPUs than processes.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        return Ranks()
    if not dist.is_initialized():
        _connect(timedelta(seconds=config.collective_timeout_s))
    limit = timedelta(seconds=config.wait_timeout_s)
    waiting, aside = (dist.new_group(backend="gloo", timeout=limit) for _ in range(2))
    return Ranks(dist.get_rank(), count, config, waiting, aside)


def _connect(timeout: timedelta) -> None:
    """Join the default group, with tensors of a CPU over gloo and those of a GPU over NCCL."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=timeout)
        return
    local, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= num_gpus:
        raise UsageError(
            f"process {local} of this machine has no GPU of its own: there are {num_gpus}; start torchrun with "
            f"--nproc-per-node {num_gpus} at most, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on the CPU"
        )
    torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout, device_id=torch.device("cuda", local))


def num_restarts() -> int:
    """Return how often the ranks were started again, by the variable in which torchrun tells it, too."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def leave_ranks() -> None:
    """Say goodbye to the other ranks, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()
