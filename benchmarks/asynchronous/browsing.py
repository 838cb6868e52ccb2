"""The household with delays like those of web pages: most turns are fast, some slow, a few very slow."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from agentgym import Message, Task, register
from agentgym.envs.household.env import HouseholdEnv
from agentgym.rollout.seeds import derive_seed
from agentgym.types import Observation


class Browsing(HouseholdEnv):
    """The household with a delay per turn, lognormal, a function of the task, the turn's number and the action.

    A page that two members of a group open thus takes both the same time, and runs with the same actions have the same
    delays. They are asyncio sleeps: they cost no processor time. Training tasks alone have them, since only training is
    timed.

    Args:
        median_s: half of the turns take longer.
        sigma: spread of the logarithm; 1.0 puts the mean at 1.6 times and the slowest percent at 10 times the median.
    """

    def __init__(self, *, median_s: float = 0.7, sigma: float = 1.0, **household: Any) -> None:
        super().__init__(**household)
        self._median_s, self._sigma = median_s, sigma

    async def astart(self, task: Task) -> str | Observation:
        self._page = (task.seed, 0)
        self._is_slow = task.split == "train"
        return self.start(task)

    async def arespond(self, action: Message) -> str | Observation:
        seed, turn = self._page
        self._page = (seed, turn + 1)
        draw = np.random.default_rng(derive_seed(seed, turn, action.text)).standard_normal()
        if self._is_slow:
            await asyncio.sleep(self._median_s * float(np.exp(self._sigma * draw)))
        return self.respond(action)


register("Browsing-v0", Browsing)
