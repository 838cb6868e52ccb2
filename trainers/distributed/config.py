"""Settings of the ranks of a run: who samples, how the model is sharded, and how long ranks wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.settings import Count, Natural, Positive, Settings, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksConfig(Settings):
    """Settings of the ranks that torchrun or Ray starts. They have no effect in a run of one process."""

    rollouts: Literal["auto", "all", "first"] = "auto"
    """Ranks that sample episodes for training. ``all``: each samples its share of the groups, with an engine of its
    own, from vLLM servers that all share, or on a Ray cluster that all share. In async mode the number of ranks must
    divide ``groups_per_step``. ``first``: only the first rank samples. ``auto``: ``all`` if possible, else ``first``;
    with an engine that a user made, ``first``."""

    shard_size: Natural = 0
    """Number of ranks that share one copy of the model; it must divide the number of ranks. 0: all ranks share one.
    With 8 ranks per machine, 8 gathers weights only within a machine, and machines exchange only gradients (HSDP)."""
    context_size: Count = 1
    """Number of neighbouring ranks that split the tokens of each training row (context parallelism), for rows whose
    activations one rank cannot hold; it must divide the number of ranks. It applies to the policy's update."""
    reduce: Literal["auto", "microbatch", "update"] = "auto"
    """Time of the reduction of gradients over ranks. ``microbatch``: after each micro-batch. ``update``: once per
    optimizer step, for which each rank keeps the whole gradient (4 bytes per trained parameter). ``auto``: within a
    copy of the model after each micro-batch, between copies (``shard_size``) once per optimizer step, which needs no
    extra memory."""
    wait_timeout_s: Positive = 86_400.0
    """Seconds that the other ranks wait at most while the first one samples, evaluates or writes. The limit is for a
    rank that hangs. A rank that dies is noticed at once, because its connection closes."""
    collective_timeout_s: Positive = 600.0
    """Seconds that one collective operation on tensors may take at most; all ranks take part in it at once."""

    def __post_init__(self) -> None:
        check_ranges(self, "ranks.")

    def num_shards(self, num_ranks: int) -> int:
        """Return the number of ranks over which each copy of the model is sharded.

        Example:
            >>> RanksConfig(shard_size=8).num_shards(32), RanksConfig().num_shards(32)
            (8, 32)
        """
        return self.shard_size or num_ranks
