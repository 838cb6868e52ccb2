"""A worked example in the prompt: the first turns of an episode of the oracle's, for models that know no format."""

from __future__ import annotations

from agentgym.env.env import Env
from agentgym.errors import UsageError
from agentgym.types import Message

_MAX_TASKS = 50


def worked_example(env: Env, num_turns: int) -> tuple[Message, ...]:
    """Play the oracle on the first training task that takes at least ``num_turns`` turns, and return what was said.

    The result ends with an action, so that a task can follow.

    Raises:
        UsageError: the environment has no oracle, or its episodes are shorter.
    """
    for task in env.tasks("train")[:_MAX_TASKS]:
        messages, is_over = [*env.reset(options={"task": task})[0]], False
        for turn in range(num_turns):
            if is_over:
                break
            try:
                action = env.oracle()
            except UsageError as error:
                raise UsageError(
                    f"context.example_turns={num_turns} shows what the oracle of {env.env_id} does, and it has none"
                ) from error
            replies, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
            messages += [action, *(replies if turn + 1 < num_turns else ())]
            if turn + 1 == num_turns:
                return tuple(messages)
    raise UsageError(
        f"context.example_turns={num_turns}: no episode of the oracle of {env.env_id} is so long, on {_MAX_TASKS} "
        "training tasks; lower it"
    )
