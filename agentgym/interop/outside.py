"""An episode that the loop of another project runs message by message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from agentgym.env.actions import Action, as_message
from agentgym.env.env import Env
from agentgym.registry import make
from agentgym.rollout.env_steps import reset_env, step_env
from agentgym.rollout.request import EpisodeLimits
from agentgym.types import Observation, Turn


class OutsideEpisode:
    """One episode with its own environment and the time limits of agentgym's rollouts.

    Example:
        >>> import asyncio
        >>> async def play():
        ...     episode = OutsideEpisode("agentgym/GuessNumber-v0", {})
        ...     await episode.begin("train", 0)
        ...     await episode.step({"name": "guess", "arguments": {"number": 1}})
        ...     await episode.close()
        ...     return episode.num_turns
        >>> asyncio.run(play())
        1
    """

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any]) -> None:
        self.env: Env = make(env_id, **env_kwargs)
        self._limits = EpisodeLimits().of(self.env)
        self.is_over = self.success = False
        self.episode_return = 0.0
        """Sum of the turns' rewards so far."""
        self.parts: Counter[str] = Counter()
        """Sum of each named part of the rewards so far."""
        self.num_turns = 0

    async def begin(self, split: str, index: int) -> Observation:
        """Reset to a task, given by its index in a split, with the task's seed.

        Raises:
            InfrastructureError: the environment fails, or does not answer in time.
        """
        return await reset_env(self.env, self.env.tasks(split)[index], self._limits)

    async def step(self, action: Action) -> Observation:
        """Take one turn, and return what the environment answers.

        Raises:
            InfrastructureError: the environment fails, or does not answer in time.
        """
        turn = Turn(index=self.num_turns, action=as_message(action, self.env.parse_action))
        outcome = await step_env(self.env, turn, self._limits, None)
        self.num_turns += 1
        for part in outcome.turn.reward_parts:
            self.parts[part.name] += part.value  # type: ignore[assignment]
        self.episode_return += outcome.turn.reward
        self.is_over, self.success = outcome.ended is not None, bool(outcome.success)
        return outcome.turn.replies

    async def close(self) -> None:
        """Close the environment."""
        await self.env.aclose()
