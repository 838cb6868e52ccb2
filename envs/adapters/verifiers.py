"""``agentgym/Verifiers-v0``: a taskset or environment of verifiers, with its harness and its rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from agentgym.call_syntax import parse_calls
from agentgym.env.env import Env
from agentgym.env.worker_thread import loop_thread
from agentgym.envs.adapters.verifiers_messages import grades_of, message_of, tools_of
from agentgym.errors import UsageError, require_known
from agentgym.types import MalformedCall, Message, Observation, Task, ToolSpec

if TYPE_CHECKING:
    import verifiers.v1 as vf

Result = TypeVar("Result")
_CLOSE_S: Final = 60.0
_FEWEST: Final = 3


class VerifiersEnv(Env):
    """An environment of verifiers with its tasks, tools, replies and rewards.

    A turn ends when verifiers requests a model's reply, and the policy's next message is that reply. A message without
    a call is the agent's answer. Each reward function, multiplied by its weight, is a named part of the outcome.
    Metrics are in ``info["metrics"]``.

    An error in a hook, a tool server, the harness or a reward function, and an expired deadline, are infrastructure
    failures without a reward.

    Args:
        taskset: id of an installed taskset, or ``path/to/file.py`` that exports one.
        env: id of an environment for the taskset; by default the taskset's own, else one with a single agent.
        config: further settings of verifiers' ``EnvConfig``, such as ``{"taskset": {"difficulty": "hard"}}``.
        harness: program of agents that name none. ``null`` has only the tools of the task.
        runtime: place where the program runs. A harness that executes code is rejected with ``subprocess``.
        num_tasks: number of tasks from the start of the taskset. The last fifth is the split test, the fifth before it
            valid.
        success_reward: smallest sum of rewards of a success.
        timeout_s: time limit in seconds for verifiers' start, for the time between two requests, and for grading.
        max_turns: requests after which verifiers ends the episode and grades it.

    Raises:
        UsageError: verifiers rejects the settings, or there are fewer than three tasks.
    """

    takes_words: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913  (the names at the call are the documentation)
        self,
        *,
        taskset: str,
        env: str = "",
        config: Mapping[str, Any] | None = None,
        harness: str = "null",
        runtime: str = "subprocess",
        num_tasks: int = 10_000,
        success_reward: float = 1.0,
        timeout_s: float = 300.0,
        max_turns: int = 30,
        render_mode: str | None = None,
    ) -> None:
        from agentgym.envs.adapters.verifiers_episodes import Episodes
        from agentgym.envs.adapters.verifiers_load import load, path_with_uv

        self.success_outcome = success_reward  # type: ignore[misc]
        self.longest_step_s = timeout_s
        program = {"id": harness, "env": {"PATH": path_with_uv()} if runtime == "subprocess" else {}}
        seat = {"harness": program, "runtime": {"type": runtime}, "max_turns": max_turns}
        theirs = load(taskset, env, config or {}, seat)
        self._tasks = {task.key: task for task in theirs.taskset.take(num_tasks)}
        if len(self._tasks) < _FEWEST:
            raise UsageError(f"{taskset} has {len(self._tasks)} tasks; three splits need at least {_FEWEST}")
        self._episodes = Episodes(theirs, timeout_s)
        self._history: list[vf.Message] = []
        self._tools: tuple[ToolSpec, ...] = ()
        self._metrics: dict[str, float] = {}
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    def start(self, task: Task) -> Observation:
        return self._told(_run(self._episodes.begin(self._theirs(task))))

    async def astart(self, task: Task) -> Observation:
        return self._told(await _arun(self._episodes.begin(self._theirs(task))))

    def respond(self, action: Message) -> Observation:
        self._check(action)
        return self._told(_run(self._episodes.go_on(action, self.turn)))

    async def arespond(self, action: Message) -> Observation:
        self._check(action)
        return self._told(await _arun(self._episodes.go_on(action, self.turn)))

    def end_episode(self) -> None:
        _run(self._episodes.cancel(), _CLOSE_S)

    async def aend_episode(self) -> None:
        await _arun(self._episodes.cancel())

    def stop(self) -> None:
        _run(self._episodes.close(), _CLOSE_S)

    async def aclose(self) -> None:
        await _arun(self._episodes.close())
        self.close()

    def own_info(self) -> Mapping[str, Any]:
        return {"metrics": self._metrics} if self._metrics else {}

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools of the last request; none before the first episode."""
        return self._tools

    def parse_action(self, text: str) -> Message:
        return Message("assistant", text, parse_calls(text, self.tools))

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, in the taskset's order."""
        num, fifth = len(self._tasks), max(1, len(self._tasks) // 5)
        bounds = {"train": (0, num - 2 * fifth), "valid": (num - 2 * fifth, num - fifth), "test": (num - fifth, num)}
        require_known("split", split, bounds)
        first, end = bounds[split]
        keys = enumerate(list(self._tasks)[first:end])
        return [Task(id=f"{split}-{n}", split=split, seed=first + n, data={"key": key}) for n, key in keys]

    # ---------------------------------------------------------------------------------------------------- private

    def _theirs(self, task: Task) -> vf.Task:
        self._history, self._metrics = [], {}
        found = self._tasks.get(str(task.data.get("key")))
        if found is None:
            raise UsageError(f"{self.env_id}: {task.id} is no task of this taskset; take tasks from tasks(split)")
        return found

    def _check(self, action: Message) -> None:
        names = [tool.name for tool in self._tools]
        if any(isinstance(call, MalformedCall) or call.name not in names for call in action.calls):
            self.refuse()

    def _told(self, came: vf.Request | vf.Episode) -> Observation:
        if hasattr(came, "traces"):
            rewards, self._metrics, is_truncated = grades_of(came)
            for name, value in rewards.items():
                self.award(value, name)
            if is_truncated:
                self.truncate()
            else:
                self.finish()
            return (Message("user", "The episode has ended."),)
        before, self._history = self._history, came.messages
        goes_on = bool(before) and came.messages[: len(before)] == before
        # the message in between is the policy's own
        fresh = came.messages[len(before) + 1 :] if goes_on else came.messages
        self._tools = tools_of(came)
        return tuple(message_of(message) for message in fresh)


def _run(work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
    return loop_thread("agentgym verifiers").submit(work).result(timeout_s)


async def _arun(work: Coroutine[Any, Any, Result]) -> Result:
    return await asyncio.wrap_future(loop_thread("agentgym verifiers").submit(work))
