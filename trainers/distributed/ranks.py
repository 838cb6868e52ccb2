"""The processes that train one model together, started by torchrun or as Ray actors. A single process is one rank.

Either every rank samples its share of the episodes, or the first one samples all of them (``ranks.rollouts``). The
ranks exchange outlines of the episodes, and each receives the rows that it trains or scores. Only the first rank writes
to the folder and prints.

Three process groups connect the ranks:

* the default group transfers tensors (NCCL between GPUs); all ranks call it at the same time;
* a gloo group transfers Python objects; ranks may wait in it for hours while the first one samples, which NCCL would
  report as a hang;
* another gloo group belongs to the thread that writes checkpoints.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from agentgym.errors import RunHaltedError, RunStoppedError, UsageError, error_text
from agentgym.trainers.distributed.config import RanksConfig
from agentgym.trainers.distributed.devices import on_this_device
from agentgym.trainers.models.context import ContextRanks

Value = TypeVar("Value")
Share = list[tuple[int, int]]
"""Indices of a rank's work items, each with the factor of its loss."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among the processes of a run, and communication with them.

    Example:
        >>> ranks = Ranks()
        >>> ranks.is_main, ranks.share(2), ranks.gathered(4), ranks.joined([5, 6], 2)
        (True, [(0, 1), (1, 1)], [4], [5, 6])
    """

    rank: int = 0
    count: int = 1
    config: RanksConfig = RanksConfig()
    groups: list[dist.ProcessGroup] = field(default_factory=list, repr=False, compare=False)
    """The gloo groups for Python objects, of the training thread and of a thread beside it; empty for one rank."""
    splits: list[ContextRanks] = field(default_factory=list, repr=False, compare=False)
    """The ranks that split a row with this one (``ranks.context_size``); empty if none does."""
    is_beside: bool = field(default=False, repr=False, compare=False)
    """Whether this belongs to the thread beside the training thread."""

    @property
    def is_main(self) -> bool:
        """True on the rank that logs and saves."""
        return self.rank == 0

    @property
    def waiting(self) -> dist.ProcessGroup | None:
        """The gloo group of this thread; None for one rank, and after :meth:`leave`."""
        return self.groups[self.is_beside] if self.groups else None

    def beside(self) -> Ranks:
        """Return the same ranks with the second gloo group, for a thread that runs next to the training thread."""
        return replace(self, is_beside=True)

    @property
    def context(self) -> ContextRanks | None:
        """The ranks that split a row with this one."""
        return self.splits[0] if self.splits else None

    @property
    def counts_rows(self) -> bool:
        """False on a rank whose rows another one counts too, since both have a part of them."""
        return self.context is None or self.context.place == 0

    def share(self, num_items: int, *, width: int = 1, of: int | None = None) -> Share:
        """Return a rank's part of ``num_items`` work items, by index, each with a factor for its loss.

        FSDP averages the gradients of the ranks, but the loss is a sum, so the factor is the number of ranks. All ranks
        must run the model equally often, so a rank with fewer items repeats its last one with factor 0, which is
        about as large as those that the others compute at that time. A rank without items takes the last of all.

        Args:
            num_items: the number of work items.
            width: number of neighbouring ranks that work on an item together and have the same share.
            of: the rank whose part it is; this one if None.
        """
        lane, num_lanes = (self.rank if of is None else of) // width, self.count // width
        mine = [(index, num_lanes) for index in range(lane, num_items, num_lanes)]
        again = (mine[-1][0] if mine else num_items - 1, 0)
        return mine + [again] * (-(-num_items // num_lanes) - len(mine))

    def joined(self, made: Sequence[Value], num_items: int, *, width: int = 1) -> list[Value]:
        """Return the results of all ranks in the order of the work items. All ranks must call this.

        Args:
            made: one result for each item of :meth:`share`, without GPU tensors.
            num_items: the number of work items.
            width: that of :meth:`share`.
        """
        held, num_lanes = self.gathered(list(made)), self.count // width
        return [held[index % num_lanes * width][index // num_lanes] for index in range(num_items)]

    def gathered(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in order of rank (all-gather). All ranks must call this.

        Raises:
            RunStoppedError: another rank has ended, or did not call within ``ranks.wait_timeout_s``.
        """
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        self._exchange(lambda: dist.all_gather_object(values, value, group=self.waiting))
        return values

    def of_first(self, value: Value | None) -> Value:
        """Return the first rank's value on all ranks (broadcast). All ranks must call this.

        Args:
            value: the value to send; ignored on other ranks.

        Raises:
            RunStoppedError: the first rank has ended, or did not call within ``ranks.wait_timeout_s``.
        """
        found: Any = value if self.count == 1 else self._broadcast(value)
        return found  # type: ignore[no-any-return]

    def exchanged(self, parcels: Sequence[Value]) -> list[Value]:
        """Send each rank its parcel, and return those that all ranks sent to this one, in order of rank (all-to-all).

        All ranks must call this.

        Args:
            parcels: one value for each rank, without GPU tensors.

        Raises:
            RunStoppedError: another rank has ended, or did not call within ``ranks.wait_timeout_s``.
        """
        if self.count == 1:
            return list(parcels)
        packed = [b"" if to == self.rank else pickle.dumps(value, protocol=5) for to, value in enumerate(parcels)]
        sizes, found = [len(part) for part in packed], torch.empty(self.count, dtype=torch.int64)
        self._exchange(lambda: dist.all_to_all_single(found, torch.tensor(sizes), group=self.waiting))
        own, arrived = torch.frombuffer(bytearray(b"".join(packed)), dtype=torch.uint8), found.tolist()
        received = torch.empty(sum(arrived), dtype=torch.uint8)
        self._exchange(lambda: dist.all_to_all_single(received, own, arrived, sizes, group=self.waiting))
        parts = torch.split(received, arrived)
        return [parcels[at] if at == self.rank else pickle.loads(part.numpy().data) for at, part in enumerate(parts)]

    def fetched(self, held: Mapping[int, Value], wanted: Sequence[Collection[int]]) -> dict[int, Value]:
        """Return the items that this rank wants from the ranks that hold them. All ranks must call this.

        Args:
            held: the items that this rank holds, by index; the same item may be held by several ranks.
            wanted: the indices that each rank wants.
        """
        parcels = [{index: held[index] for index in indices if index in held} for indices in wanted]
        return {index: item for parcel in self.exchanged(parcels) for index, item in parcel.items()}

    def to_first(self, mine: Iterable[Value], num_rounds: int) -> Iterator[list[Value]]:
        """Yield on the first rank what all ranks have, one item of each at a time, so that it never holds all of it.

        All ranks must iterate over this to the end. On the others the lists are empty.

        Args:
            mine: this rank's items, at most ``num_rounds``.
            num_rounds: the number of lists, the same on all ranks.
        """
        items = iter(mine)
        for _ in range(num_rounds):
            parcels: list[list[Value]] = [[] for _ in range(self.count)]
            parcels[0] = list(islice(items, 1))
            yield [item for parcel in self.exchanged(parcels) for item in parcel]

    def meet(self) -> None:
        """Wait until all ranks have called this (barrier).

        Raises:
            RunStoppedError: another rank has ended, or did not call within ``ranks.wait_timeout_s``.
        """
        self.gathered(None)

    def leave(self) -> None:
        """Leave the process groups, if there are any, and end their threads.

        A group's threads end with its last reference, so this drops those of all copies. In a group that lives on while
        the interpreter ends, a thread may need Python to free a tensor, and the process dies by SIGABRT
        (https://github.com/pytorch/pytorch/pull/179291).
        """
        self.groups.clear()
        self.splits.clear()
        if dist.is_initialized():
            dist.destroy_process_group()

    async def from_main(self, make: Callable[[], Awaitable[Value]]) -> Value:
        """Call the function on the first rank, and return its result on all ranks. If it fails, all ranks stop.

        Raises:
            RunStoppedError: on other ranks: the first rank failed, has ended, or took longer than
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
            await asyncio.to_thread(broadcast, (error_text(error), None))
            raise
        await asyncio.to_thread(broadcast, ("", value))
        return value

    async def from_all(self, make: Callable[[], Awaitable[Value]]) -> list[Value]:
        """Call the function on every rank, and return all results, in order of rank. If one fails, all ranks stop.

        Raises:
            RunStoppedError: on other ranks: a rank failed, has ended, or took longer than ``ranks.wait_timeout_s``.
        """
        if self.count == 1:
            return [await make()]
        gather = on_this_device(self.gathered)
        try:
            value = await make()
        except BaseException as error:
            await asyncio.to_thread(gather, (error_text(error), None))
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
            raise RunHaltedError(
                f"rank {self.rank} lost the other ranks: one ended, or took longer than "
                f"ranks.wait_timeout_s={self.config.wait_timeout_s:g}; see the others' first error ({reason})"
            ) from error


def join_ranks(config: RanksConfig = RanksConfig()) -> Ranks:  # noqa: B008  (frozen)
    """Return the ranks that torchrun or Ray started with this process; a process started otherwise is one rank.

    Raises:
        UsageError: this machine has fewer GPUs than processes.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        return Ranks()
    if not dist.is_initialized():
        _connect(timedelta(seconds=config.collective_timeout_s))
    limit = timedelta(seconds=config.wait_timeout_s)
    groups = [dist.new_group(backend="gloo", timeout=limit) for _ in range(2)]
    return Ranks(dist.get_rank(), count, config, groups, _splits(config, count))


def _splits(config: RanksConfig, count: int) -> list[ContextRanks]:
    """Make the groups of ranks that split a row; return this rank's."""
    size = config.context_size
    if size == 1 or count % size:  # check_ranks refuses the second
        return []
    backend, limit = "nccl" if torch.cuda.is_available() else "gloo", timedelta(seconds=config.collective_timeout_s)
    made = [
        dist.new_group(list(range(first, first + size)), backend=backend, timeout=limit)
        for first in range(0, count, size)
    ]
    lane, place = divmod(dist.get_rank(), size)
    own = made[lane]
    assert isinstance(own, dist.ProcessGroup)
    return [ContextRanks(own, place, size)]


def _connect(timeout: timedelta) -> None:
    """Join the default process group: gloo for CPU tensors, NCCL for GPU tensors."""
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
    """Return the number of restarts of the ranks, from torchrun's environment variable, which Ray ranks set too."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
