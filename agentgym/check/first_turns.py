"""Single actions at the start of a task, and a limit on what a useless one may earn."""

from __future__ import annotations

from agentgym.check.episodes import ON_TURN, TOLERANCE, reward_of
from agentgym.check.outages import retried
from agentgym.check.policies import noop_action
from agentgym.check.report import CheckFailed
from agentgym.env.env import Env, StepReturn
from agentgym.types import Message, Task

_MANY_TURNS = 1000


class FirstTurns:
    """Plays actions one by one at the start of a task, and resets the environment only where it must.

    A rejected action leaves the episode at its start. A turn limit would end it after a few of them, so it is raised;
    a limit of one turn stays, since an environment with that limit grades every action.
    """

    def __init__(self, env: Env, task: Task) -> None:
        if env.max_turns is not None and env.max_turns > 1:
            env.max_turns = max(env.max_turns, _MANY_TURNS)
        self._env, self._task = env, task
        self._idle = max(0.0, reward_of(env, task, noop_action(env)))
        self._earned: dict[str, float] = {}  # by harmless actions
        self._is_at_start = False

    def step(self, action: Message) -> StepReturn:
        """Return what the environment returns for an action; it is tried again if the infrastructure fails."""
        return retried(lambda: self._step(action))

    def _step(self, action: Message) -> StepReturn:
        if not self._is_at_start:
            self._env.reset(options={"task": self._task})
        self._is_at_start = False  # also if the step fails
        returned = self._env.step(action)
        ON_TURN.get()(1)
        _, _, terminated, truncated, info = returned
        self._is_at_start = not (terminated or truncated or info["is_valid"])
        return returned

    def check_reward(self, what: str, reward: float, action: Message, harmless: Message | None) -> None:
        """Check that the last action earned no more than doing nothing, or than a harmless action like it.

        An action that earned more is played once more after a reset: the reward may belong to the turns before it.
        """
        if reward <= self._idle + TOLERANCE:
            return
        reward = reward_of(self._env, self._task, action)
        ceiling = max(self._idle, self._reward_of_harmless(harmless))
        self._is_at_start = False
        if reward > ceiling + TOLERANCE:
            raise CheckFailed(f"{what}: earns {reward}, more than {ceiling}, which a harmless action earns")

    def _reward_of_harmless(self, action: Message | None) -> float:
        if action is None:
            return 0.0
        key = str(action)
        if key not in self._earned:
            self._earned[key] = reward_of(self._env, self._task, action)
        return self._earned[key]
