"""Record an episode so that it can be replayed, and verify that the replay is identical, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from agentgym.env.env import Env
from agentgym.envs.gui.browser import PageLimits
from agentgym.envs.gui.pool import PoolConfig
from agentgym.errors import EnvError
from agentgym.types import Message, Task

_NUM_TRIES = 3
PATIENT: Final = PoolConfig(limits=PageLimits(script_s=60.0, load_s=120.0))
"""Limits for environments whose episodes are compared: a busy machine must not stop a slow script."""

World = TypeVar("World", bound=Env)
Job = TypeVar("Job")
Result = TypeVar("Result")
Policy = Callable[[World], Message]


@dataclass(frozen=True, slots=True)
class Recording:
    """An episode: its task, its actions as text, and the state key and reward after the start and after each turn."""

    task: Task
    seed: int
    actions: tuple[str, ...]
    state_keys: tuple[str, ...]
    """One key more than there are actions: the start state's key comes first."""
    rewards: tuple[float, ...]
    has_ended: bool

    def to_json(self) -> dict[str, object]:
        """Return plain data for a JSON file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        """Return the recording that :meth:`to_json` wrote."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**(fields | {"task": Task(**data["task"])}))


def record(env: World, task: Task | str | int, policy: Policy[World], max_turns: int = 20) -> Recording:
    """Play one episode by a policy, until it ends or ``max_turns`` is reached, and return its recording."""
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
    """Replay a recording's actions; return a sentence for each difference, turn by turn, or an empty list.

    The environment must be made with the same arguments; the process and the machine may differ.
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


def side_by_side(
    make_env: Callable[[], World], play: Callable[[World, Job], Result], jobs: Iterable[Job], num_envs: int = 4
) -> list[Result]:
    """Play each job in one of ``num_envs`` environments, one thread each; return the results in the jobs' order.

    An episode in a browser mostly waits, so several at a time use a machine better than one. A job that fails with an
    infrastructure error is tried again, as in a rollout. The first error that persists, or that is of another kind, is
    raised once the running jobs have ended.
    """
    envs = [make_env() for _ in range(num_envs)]
    free: SimpleQueue[World] = SimpleQueue()
    for env in envs:
        free.put(env)

    def one(job: Job) -> Result:
        env = free.get()
        try:
            for _ in range(_NUM_TRIES - 1):
                with suppress(EnvError):
                    return play(env, job)
            return play(env, job)
        finally:
            free.put(env)

    threads = ThreadPoolExecutor(num_envs)
    try:
        return list(threads.map(one, jobs))
    finally:
        threads.shutdown(cancel_futures=True)
        for env in envs:
            env.close()


def _compare(found: list[str], turn: int, what: str, recorded: object, now: object) -> None:
    if recorded != now:
        found.append(f"turn {turn}: the {what} was {str(recorded)[:200]!r} and is {str(now)[:200]!r}")
