"""A program of one rank: the same update with every setting of ``ranks.reduce``.

``python ranked_reduce.py OUT SHARD_SIZE``: for each setting, OUT receives the change of the weights and the numbers of
reductions within a copy of the model (``scattered``) and between copies (``summed``).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentgym.trainers.data.samples import build_samples
from agentgym.trainers.distributed.config import RanksConfig
from agentgym.trainers.distributed.ranks import join_ranks
from agentgym.trainers.distributed.sharding import shard, whole
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.phases.update_step import batches_for
from testkit.ranked_update import made_verdicts, small_model

WAYS = ("microbatch", "auto", "update")
LOSS = LossConfig(tokens_per_microbatch=24, layout="rows", num_updates=2)


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A counter of called operations, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] = self.counts.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))

    def of(self, part: str) -> int:
        """Return the number of calls of operations whose name contains a text."""
        return sum(count for name, count in self.counts.items() if part in name)


def main(out: Path, shard_size: int) -> None:
    torch.set_num_threads(1)
    joined = join_ranks()
    found: dict[str, Any] = {"num_batches": len(batches_for(small_model(), build_samples(made_verdicts(0)), LOSS))}
    for way in WAYS:
        ranks = replace(joined, config=RanksConfig(shard_size=shard_size, reduce=way))  # type: ignore[arg-type]
        model: Any = shard(small_model(), ranks)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Counter() as counted:
            update_policy(model, optimizer, made_verdicts(0), LOSS, temperature=0.9, max_grad_norm=100.0)
        state = whole(model.state_dict())
        begin = small_model().state_dict()
        found[way] = {
            "change": torch.cat([(state[name] - begin[name]).flatten() for name in sorted(state)]),
            "scattered": counted.of("c10d._reduce_scatter_base"),
            "summed": counted.of("c10d.allreduce"),
        }
    if joined.is_main:
        torch.save(found, out)
    joined.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
