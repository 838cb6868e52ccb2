"""Pages of MiniWoB++ that are kept for the next episode: it is the same there as on a fresh one, on every page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from testkit.miniwob_episodes import NEEDS_MINIWOB

from agentgym.envs.gui.fuzz import fuzz_action
from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.miniwob.tasks import RELOADED, TASKS
from agentgym.envs.gui.replay import PATIENT, Policy, differences, record, side_by_side
from agentgym.types import Message, Task

pytestmark = NEEDS_MINIWOB

KEPT = [name for name in TASKS if name not in RELOADED]


class CountingEnv(MiniWoBEnv):
    """Counts the episodes of each page in a variable of the page."""

    num_begun = 0

    async def set_up(self, task: Task) -> str:
        self.num_begun = await self.evaluate("window.numBegun = (window.numBegun || 0) + 1")
        return await super().set_up(task)


def fuzzing(seed: int) -> Policy[MiniWoBEnv]:
    rng = np.random.default_rng(seed)

    def act(env: MiniWoBEnv) -> Message:
        return fuzz_action(env, rng)

    return act


def twice(env: CountingEnv, name: str) -> tuple[bool, list[str]]:
    """Play an episode on a fresh page, one of another seed that does something else, and the first one again.

    Returns whether the last two were on one page, and the differences between the first and the last.
    """
    recording = record(env, f"{name}-3", fuzzing(1), 5)
    assert env.num_begun == 1
    record(env, f"{name}-8", fuzzing(2), 5)
    num_begun = env.num_begun
    found = differences(env, recording)
    return env.num_begun == num_begun + 1, found


@pytest.mark.slow
def test_episodes_on_kept_pages_are_as_on_fresh_ones() -> None:
    pool = replace(PATIENT, num_kept=16)
    played = side_by_side(lambda: CountingEnv(pool=pool), twice, KEPT)
    assert {name: found for name, (_, found) in zip(KEPT, played, strict=True) if found} == {}
    assert sum(is_kept for is_kept, _ in played) >= 0.8 * len(KEPT), "the others were left by the episode before"


def test_other_pages_are_loaded_anew() -> None:
    env = CountingEnv()
    for name in sorted(RELOADED)[:2]:
        for number in range(2):
            env.reset(options={"task": f"{name}-{number}"})
            assert env.num_begun == 1
    env.close()
