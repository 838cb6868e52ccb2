"""``agentgym/WikiWorld-v0``: answer questions of one to four hops from a made encyclopedia."""

from __future__ import annotations

from agentgym.envs.search.search_env import SearchEnv
from agentgym.envs.search.world_tasks import WorldEnv


class WikiWorldEnv(WorldEnv, SearchEnv):
    """Answer questions from an encyclopedia of made-up people, places and works, by search.

    Facts are drawn from a seed and pages written from them; a question asks for what a chain of facts leads to, and
    has one right answer. Nothing of it can be known beforehand. Arguments are those of
    :class:`~agentgym.envs.search.world_tasks.WorldEnv`.

    Example:
        >>> env = WikiWorldEnv(num_pages=60)
        >>> observation, info = env.reset(options={"task": 1})
        >>> while not (step := env.step(env.oracle()))[2]:
        ...     pass
        >>> step[1]
        1.0
    """
