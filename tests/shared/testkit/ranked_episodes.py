"""A program of one rank: evaluates a new policy, and counts the episodes that this rank plays at the same time.

``python ranked_episodes.py RUN_DIR KEY=VALUE...``
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agentgym.rollout.pool import Pool
from agentgym.rollout.request import RolloutRequest
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.distributed.ranks import join_ranks
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.phases.evaluation import evaluate_policy
from agentgym.trainers.phases.rollouts import Rollouts
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.reporting.metrics import SilentLog
from agentgym.trainers.run.run import Run
from agentgym.types import Trajectory


class Counted:
    """A pool that knows how many episodes it has played at the same time at most."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._num_playing, self.most = pool, 0, 0

    async def play(self, request: RolloutRequest) -> tuple[Trajectory, ...]:
        self._num_playing += 1
        self.most = max(self.most, self._num_playing)
        try:
            return await self._pool.play(request)
        finally:
            self._num_playing -= 1

    async def close(self) -> None:
        await self._pool.close()


async def count(run: Run) -> dict[str, int] | None:
    """Return the cache slots of this rank's engine, and the most episodes in training and evaluation.

    A rank that does not play returns None.
    """
    (env,) = run.envs
    env.eval_pool = counted = Counted(env.eval_pool)
    rollouts = Rollouts(run)
    await run.policy.update(0)
    await evaluate_policy(run, SilentLog(), "before", 0)
    found = None
    if run.ranks.is_main or run.all_ranks_sample:
        assert isinstance(run.engine, TorchEngine)
        found = {"slots": run.engine._slots.count, "evaluation": counted.most, "training": rollouts._in_flight.limit}
    await rollouts.close()
    await run.close()
    return found


def main(run_dir: Path, overrides: list[str]) -> None:
    config = apply_overrides(load_recipe("tiny"), overrides)
    ranks = join_ranks(config.ranks)
    found = ranks.gathered(asyncio.run(count(Run(config, run_dir, ranks))))
    if ranks.is_main:
        print(json.dumps(found))
    ranks.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
