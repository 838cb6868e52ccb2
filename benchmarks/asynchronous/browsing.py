"""The household behind a page that loads as pages do: most turns quickly, some slowly, a few very slowly."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from agentgym import Message, register
from agentgym.envs.household.env import HouseholdEnv
from agentgym.types import Observation


class Browsing(HouseholdEnv):
    """The household with a delay per turn, drawn from a lognormal distribution by the task's and the turn's number.

    Args:
        median_s: half of the turns take longer.
        sigma: spread of the logarithm; 1.2 puts the slowest percent at 16 times the median.
    """

    def __init__(self, *, median_s: float = 0.1, sigma: float = 1.2, **household: Any) -> None:
        super().__init__(**household)
        self._median_s, self._sigma = median_s, sigma

    async def arespond(self, action: Message) -> str | Observation:
        await asyncio.sleep(self._median_s * float(np.exp(self._sigma * self.np_random.standard_normal())))
        return self.respond(action)


register("Browsing-v0", Browsing)
