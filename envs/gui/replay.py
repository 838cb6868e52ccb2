"""Record an episode as what it takes to play it again, and verify that it plays out the same, here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agentgym.env import Env
from agentgym.types import Message, Task

Policy = Callable[[Env], Message]


@dataclass(frozen=True, slots=True)
class Recording:
    """An episode: where it began, what was done as text, and the state key and reward after the start and each turn."""

    task: Task
    seed: int
    actions: tuple[str, ...]
    state_keys: tuple[str, ...]
    """One more than actions: the start state's first."""
    rewards: tuple[float, ...]
    has_ended: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        """What :meth:`to_json` gave, read back."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**(fields | {"task": Task(**data["task"])}))


def record(env: Env, task: Task | str | int, policy: Policy, max_turns: int = 20) -> Recording:
    """Play one episode by a policy, which is asked for an action as long as the episode goes on."""
    env.reset(options={"task": task})
    actions: list[str] = []
    keys = [env.state_key()]
    rewards: list[float] = []
    is_over = False
    while not is_over and len(actions) < max_turns:
        action = policy(env)
        _, reward, terminated, truncated, _ = env.step(env.parse_action(action.text))
        actions.append(action.text)
        keys.append(env.state_key())
        rewards.append(float(reward))
        is_over = terminated or truncated
    return Recording(env.task, env.task.seed, tuple(actions), tuple(keys), tuple(rewards), is_over)


def differences(env: Env, recording: Recording) -> list[str]:
    """Play a recording's actions again; what came out otherwise, in words, turn by turn; empty if all is equal.

    The environment must be made with the same arguments; the process and the machine may be others.
    """
    found: list[str] = []
    terminated = truncated = False
    env.reset(seed=recording.seed, options={"task": recording.task})
    _compare(found, 0, "state", recording.state_keys[0], env.state_key())
    for turn, action in enumerate(recording.actions, 1):
        _, reward, terminated, truncated, _ = env.step(action)
        _compare(found, turn, "state", recording.state_keys[turn], env.state_key())
        _compare(found, turn, "reward", recording.rewards[turn - 1], float(reward))
        if (terminated or truncated) and turn < len(recording.actions):
            found.append(f"turn {turn}: the episode ended {len(recording.actions) - turn} actions early")
            return found
    if recording.actions:
        _compare(found, len(recording.actions), "end", recording.has_ended, terminated or truncated)
    return found


def _compare(found: list[str], turn: int, what: str, recorded: object, now: object) -> None:
    if recorded != now:
        found.append(f"turn {turn}: the {what} was {str(recorded)[:200]!r} and is {str(now)[:200]!r}")
