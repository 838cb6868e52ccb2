"""Pages of MiniWoB++ that are kept for the next episode: it is the same there as on a fresh one, on every page.

Episodes begin alike in two processes, on pages that are kept and on those that are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from testkit.miniwob_episodes import NEEDS_MINIWOB, elsewhere

from agentgym.env.actions import Action
from agentgym.env.env import StepReturn
from agentgym.envs.gui.fuzz import fuzz_action
from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.miniwob.tasks import RELOADED, TASKS
from agentgym.envs.gui.replay import PATIENT, Policy, differences, record, side_by_side
from agentgym.types import Message, Observation, Task

pytestmark = NEEDS_MINIWOB

KEPT = [name for name in TASKS if name not in RELOADED]


class CountingEnv(MiniWoBEnv):
    """Counts the episodes of each page in a variable of the page, and checks what each turn returns."""

    num_begun = 0
    first: list[str]
    """The start of the last episode: goal, tree, state key."""

    async def set_up(self, task: Task) -> str:
        self.num_begun = await self.evaluate("window.numBegun = (window.numBegun || 0) + 1")
        return await super().set_up(task)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self.first = [self.goal, observation[0].text, self.state_key()]
        assert self.goal
        return observation, info

    def step(self, action: Action) -> StepReturn:
        returned = super().step(action)
        observation, reward, terminated, _, _ = returned
        assert observation and all(message.text for message in observation)
        assert reward in ((0.0, 1.0) if terminated else (0.0,))
        return returned


def fuzzing(seed: int) -> Policy[MiniWoBEnv]:
    rng = np.random.default_rng(seed)

    def act(env: MiniWoBEnv) -> Message:
        return fuzz_action(env, rng)

    return act


def twice(env: CountingEnv, name: str) -> tuple[bool, list[str], list[str]]:
    """Play an episode on a fresh page, one of another seed that does something else, and the first one again.

    Returns whether the last two were on one page, the differences between the first and the last, and the start.
    """
    recording = record(env, f"{name}-3", fuzzing(1), 8)
    start = env.first
    assert env.num_begun == 1
    record(env, f"{name}-8", fuzzing(2), 5)
    num_begun = env.num_begun
    found = differences(env, recording)
    assert env.first == start
    return env.num_begun == num_begun + 1, found, start


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_episodes_on_kept_pages_are_as_on_fresh_ones_and_in_another_process(part: int) -> None:
    pool = replace(PATIENT, num_kept=16)
    names = KEPT[part::2]
    played = side_by_side(lambda: CountingEnv(pool=pool), twice, names)
    assert {name: found for name, (_, found, _) in zip(names, played, strict=True) if found} == {}
    assert sum(is_kept for is_kept, _, _ in played) >= 0.8 * len(names), "the others were left by the episode before"
    _begin_alike(names, [start for _, _, start in played])


@pytest.mark.slow
def test_episodes_on_other_pages_begin_alike_in_another_process() -> None:
    def start(env: CountingEnv, name: str) -> list[str]:
        record(env, f"{name}-3", fuzzing(1), 8)
        return env.first

    names = sorted(RELOADED)
    _begin_alike(names, side_by_side(lambda: CountingEnv(pool=PATIENT), start, names))


def _begin_alike(names: Sequence[str], starts: Sequence[list[str]]) -> None:
    assert len({key for _, _, key in starts}) == len(names)
    assert elsewhere("first_looks", [f"{name}-3" for name in names]) == starts


def test_other_pages_are_loaded_anew() -> None:
    env = CountingEnv()
    for name in sorted(RELOADED)[:2]:
        for number in range(2):
            env.reset(options={"task": f"{name}-{number}"})
            assert env.num_begun == 1
    env.close()
