"""Work that the processes of one run share, and how long they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.settings import Natural, Positive, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksConfig:
    """Settings of the ranks that torchrun starts; one process alone plays and never waits."""

    rollouts: Literal["auto", "all", "first"] = "auto"
    """Ranks that play training's episodes. ``all``: each has an engine and plays its share of every step's groups. That
    needs the embedded engine, ``pipeline.mode=sync`` and a ``groups_per_step`` that the number of ranks divides.
    ``first``: the first rank alone, while the others wait. ``auto``: ``all`` where it is possible."""

    shard_size: Natural = 0
    """Ranks that share one copy of the model, which must divide the number of ranks; 0 is all of them. With 8 ranks a
    machine, 8 keeps the gathering of weights inside each machine, and machines exchange gradients alone (HSDP)."""
    reduce: Literal["auto", "microbatch", "update"] = "auto"
    """When ranks add up their gradients. ``microbatch``: after each micro-batch. ``update``: once an optimizer step,
    for which each rank keeps the whole gradient, 4 bytes a trained parameter. ``auto``: over the ranks of a copy after
    each micro-batch, over copies (``shard_size``) once an optimizer step, which takes no memory."""
    wait_timeout_s: Positive = 86_400.0
    """Longest time that the other ranks wait while the first one plays, evaluates or writes. This limit is for a rank
    that hangs: one that dies is noticed at once, by its closed connection."""
    collective_timeout_s: Positive = 600.0
    """Longest time of one collective operation on tensors, in which all ranks take part at once."""

    def __post_init__(self) -> None:
        check_ranges(self, "ranks.")

    def num_shards(self, num_ranks: int) -> int:
        """Return the ranks over which each copy of the model is cut up.

        Example:
            >>> RanksConfig(shard_size=8).num_shards(32), RanksConfig().num_shards(32)
            (8, 32)
        """
        return self.shard_size or num_ranks
