"""A program of two ranks: the first samples for longer than a collective operation may take, and the other waits.

``python ranked_waits.py PLAY_S WAIT_TIMEOUT_S COLLECTIVE_TIMEOUT_S`` prints the result of each rank, or its error.
"""

from __future__ import annotations

import asyncio
import sys
import weakref

import torch
import torch.distributed as dist

from agentgym.errors import RunStoppedError
from agentgym.trainers.distributed.config import RanksConfig
from agentgym.trainers.distributed.ranks import join_ranks


async def main(play_s: float, config: RanksConfig) -> None:
    ranks = join_ranks(config)

    async def play() -> str:
        await asyncio.sleep(play_s)
        return "played"

    try:
        got = await ranks.from_main(play)
        ranks.meet()
        total = torch.ones(1)
        dist.all_reduce(total)
        line = f"rank {ranks.rank}: {got} {total.item():g}"
    except RunStoppedError as error:
        line = f"rank {ranks.rank}: stopped: {error}"
    print(line + "\n", end="", flush=True)
    group = weakref.ref(ranks.waiting)
    ranks.leave()
    # an error that has passed through asyncio keeps what it has seen
    assert group() is None or "stopped" in line, "it would have threads when the interpreter ends"


if __name__ == "__main__":
    play_s, wait_s, collective_s = map(float, sys.argv[1:])
    asyncio.run(main(play_s, RanksConfig(wait_timeout_s=wait_s, collective_timeout_s=collective_s)))
