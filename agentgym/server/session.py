"""Sessions of an environment server, each with one environment instance."""

from __future__ import annotations

import asyncio
import base64
import inspect
import pickle
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from agentgym.env.env import Env, StepInfo
from agentgym.env.observations import as_observation
from agentgym.env.time_limit import Limited
from agentgym.errors import EnvTimeoutError, HungError, ToolError, UsageError, contained_exit
from agentgym.remote import wire
from agentgym.remote.wire import Step, View, key_of
from agentgym.server.limits import ServerLimits
from agentgym.types import Message, Observation, RewardPart, Task, ToolCall, ToolSpec

T = TypeVar("T")
_SHORT_KEY = 200
"""Characters up to which a state key is sent without a look at the observation."""
_SENT_APART = frozenset({"reward_parts", "is_valid", "success", "played"})


class LeftBehindError(EnvTimeoutError):
    """A blocking environment exceeded its time limit. Its thread, which nothing can end, continues."""


class EnvSession(ABC):
    """An environment instance that one client uses.

    A session answers one request at a time. Each request has a sequence number. If a client repeats its last request
    after a lost connection, it gets the same answer, and no action runs twice.
    """

    env_id: str
    tools: tuple[ToolSpec, ...]
    """Tools of the running episode, or those of a new instance."""

    def __init__(self, key: str = "") -> None:
        self.id = secrets.token_urlsafe(18)
        self.agent_token = secrets.token_urlsafe(18)
        self.key = key
        """Key that the client chose when it opened the session."""
        self.last_seen = time.monotonic()
        self.opening: Observation = ()
        """First observation of the episode."""
        self._sequence = 0
        self._answer: asyncio.Task[Any] | None = None
        self._is_running = False

    @property
    def is_busy(self) -> bool:
        """True while a request is being answered."""
        return self._answer is not None and not self._answer.done()

    async def ask(self, op: str, fields: Mapping[str, Any], sequence: int | None = None) -> Any:
        """Answer a trainer's request.

        Args:
            op: name of the operation.
            fields: arguments of the operation.
            sequence: number of the request in this session, from 1; None for the next number.

        Raises:
            UsageError: another request is in progress, or the number is old.
            AgentGymError: an error of the environment.
        """
        self.last_seen = time.monotonic()
        if sequence is not None and sequence == self._sequence and self._answer is not None:
            return await asyncio.shield(self._answer)
        if sequence is not None and sequence < self._sequence:
            raise UsageError(f"request {sequence} of this session is older than its last, {self._sequence}")
        if self.is_busy:
            raise UsageError("this session is answering another request; a session takes one at a time")
        self._sequence = self._sequence + 1 if sequence is None else sequence
        self._answer = asyncio.create_task(self._answered(op, fields))
        self._answer.add_done_callback(_retrieved)
        try:
            return await asyncio.shield(self._answer)
        finally:
            self.last_seen = time.monotonic()

    async def act(self, name: str, arguments: Mapping[str, Any]) -> tuple[Observation, bool]:
        """Execute an agent's tool call. Return the messages and whether the episode is over, but no rewards.

        Raises:
            UsageError: no episode is running.
            InfrastructureError: the environment failed.
        """
        if not self._is_running:
            raise UsageError("no episode is running")
        call = Message("assistant", calls=(ToolCall(name, dict(arguments), "0"),))
        try:
            step: Step = await self.ask("step", {"action": call})
        except ToolError as error:  # an infrastructure failure ends the episode
            return (Message("tool", str(error)),), True
        return step.view.observation, step.terminated or step.truncated

    async def close(self) -> None:
        """Close the environment."""
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()

    @abstractmethod
    async def perform(self, op: str, fields: Mapping[str, Any]) -> Any:
        """Execute an operation in the environment's process.

        ``reset`` and ``load`` return a :class:`View` with the first observation, ``step`` returns a :class:`Step`.
        """

    async def _answered(self, op: str, fields: Mapping[str, Any]) -> Any:
        """Execute an operation and record whether an episode is running."""
        if op in ("reset", "load"):
            self._is_running = False
        try:
            found = await self.perform(op, fields)
        except ToolError:
            self._is_running = False
            raise
        view = found.view if isinstance(found, Step) else found
        if isinstance(view, View) and view.tools is not None:
            self.tools = view.tools
        if isinstance(found, View):
            self.opening, self._is_running = found.observation, True
        elif isinstance(found, Step) and (found.terminated or found.truncated):
            self._is_running = False
        return found


class LocalSession(EnvSession):
    """A session whose environment runs in this process, in a separate thread if it is blocking."""

    def __init__(self, env: Env, limits: ServerLimits, key: str = "") -> None:
        super().__init__(key)
        self.env = env
        self.env_id, self.tools = env.env_id, env.tools
        self._limits = limits
        self._limit_s = max(limits.step_timeout_s, env.longest_step_s)
        self._sent_tools: Any = None
        self._parts: list[RewardPart] = []
        self._ended: bool | None = None
        """Success of the finished episode; None while it runs."""

    async def perform(self, op: str, fields: Mapping[str, Any]) -> Any:
        """Execute an operation of the environment."""
        return await _OF_LOCAL[op](self, fields)

    async def close(self) -> None:
        """Close the environment. A hung environment is abandoned in its thread."""
        await super().close()
        with suppress(Exception):
            async with asyncio.timeout(10.0):
                await self.env.aclose()

    # ------------------------------------------------------------------------------------------------- operations

    async def _reset(self, fields: Mapping[str, Any]) -> View:
        options = {key: value for key in ("task", "split") if (value := fields.get(key)) is not None}
        options |= dict(fields.get("options") or {})
        if isinstance(options.get("task"), Mapping):
            options["task"] = wire.read(Task, options["task"])
        self._parts, self._ended = [], None
        observation, _ = await self._limited(self.env.areset(seed=fields.get("seed"), options=options), "reset")
        return self._view(as_observation(observation))

    async def _step(self, fields: Mapping[str, Any]) -> Step:
        action = fields.get("action")
        message = wire.read(Message, action) if isinstance(action, Mapping) and "role" in action else action
        if not isinstance(message, Message | str | Mapping | list):
            raise UsageError("action must be an assistant message, text, a tool call, or a list of tool calls")
        if self.env.turn >= self._limits.max_steps:
            raise UsageError(f"this session has taken {self._limits.max_steps} turns; reset it")
        try:
            stepped = await self._limited(self.env.astep(message), f"turn {self.env.turn + 1}")
        except ToolError:
            self._ended = False
            raise
        observation, _, terminated, truncated, info = stepped
        self._parts += info["reward_parts"]
        if terminated or truncated:
            self._ended = bool(info.get("success", False))
        return Step(
            view=self._view(observation),
            reward_parts=info["reward_parts"],
            is_valid=info["is_valid"],
            terminated=terminated,
            truncated=truncated,
            success=bool(info.get("success", False)),
            played=info.get("played"),
            info=_own(info),
        )

    async def _grade(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rewards of the episode so far, for a trainer whose agent acts through its own routes."""
        return {
            "is_over": self._ended is not None,
            "success": self._ended,
            "reward": sum(part.value for part in self._parts),
            "reward_parts": self._parts,
            "num_turns": self.env.turn,
        }

    async def _plain(self, method: Callable[[], Any]) -> Any:
        """Call a synchronous method in the environment's thread."""
        if self.env.is_blocking:
            return await self._limited(self.env._in_thread(method), "request")
        return await self._limited(_at_once(method), "request")

    async def _state_key(self, fields: Mapping[str, Any]) -> Any:
        return await self._plain(self.env.state_key)

    async def _oracle(self, fields: Mapping[str, Any]) -> Any:
        return await self._plain(self.env.oracle)

    async def _admissible(self, fields: Mapping[str, Any]) -> Any:
        return await self._plain(self.env.admissible_actions)

    async def _cheats(self, fields: Mapping[str, Any]) -> Any:
        return await self._plain(self.env.cheats)

    async def _parse(self, fields: Mapping[str, Any]) -> Any:
        text = fields.get("text")
        if not isinstance(text, str):
            raise UsageError("text must be text")
        return await self._plain(lambda: self.env.parse_action(text))

    async def _dump(self, fields: Mapping[str, Any]) -> str | None:
        """Return the state as text, or None if it can only be replayed or cannot be pickled."""
        snapshot = await self._limited(self.env.asnapshot(), "snapshot")
        if snapshot.native is None:
            return None
        try:
            kept = (self.env_id, snapshot, self._parts, self._ended, self.opening)
            return base64.b64encode(pickle.dumps(kept)).decode()
        except Exception:  # any error in pickling means that the client replays
            return None

    async def _load(self, fields: Mapping[str, Any]) -> View:
        # the pickle comes from this server or its worker, never from a client
        env_id, snapshot, parts, ended, opening = pickle.loads(base64.b64decode(fields["state"]))
        if env_id != self.env_id:
            raise UsageError(f"the state is one of {env_id}, and this session plays {self.env_id}")
        await self._limited(self.env.arestore(snapshot), "restore")
        self._parts, self._ended = parts, ended
        return self._view(opening)

    async def _end_episode(self, fields: Mapping[str, Any]) -> None:
        await self._limited(self.env.aend_episode(), "end_episode")

    # ---------------------------------------------------------------------------------------------------- private

    def _view(self, observation: tuple[Message, ...]) -> View:
        tools = self.env.tools
        is_new = tools != self._sent_tools
        self._sent_tools = tools
        try:
            state_key = self.env.state_key()
        except Exception:  # the client requests the key and gets the error, as a local caller would
            state_key = None
        is_observed = isinstance(state_key, str) and len(state_key) > _SHORT_KEY and state_key == key_of(observation)
        return View(
            observation=observation,
            state_key=state_key if isinstance(state_key, str) and not is_observed else None,
            is_key_observed=is_observed,
            task_type=str(self.env.task_type),
            tools=tools if is_new else None,
        )

    async def _limited(self, work: Awaitable[T], what: str) -> T:
        name = f"{self.env.env_id} {what}"
        limited = Limited(work, self._limit_s, name)
        try:
            async with asyncio.timeout(self._limit_s):
                with contained_exit():  # of the episode alone, not of the server with all others
                    return await limited
        except HungError:
            type(self.env).is_blocking = True  # use a new thread from now on, since the old one is hung
            raise
        except TimeoutError as error:
            kind = LeftBehindError if self.env.is_blocking else EnvTimeoutError
            raise kind(f"{name}: not done after {self._limit_s:g} s") from error


_OF_LOCAL: Final[Mapping[str, Callable[[LocalSession, Mapping[str, Any]], Coroutine[Any, Any, Any]]]] = {
    "reset": LocalSession._reset,
    "step": LocalSession._step,
    "grade": LocalSession._grade,
    "state_key": LocalSession._state_key,
    "oracle": LocalSession._oracle,
    "admissible_actions": LocalSession._admissible,
    "cheats": LocalSession._cheats,
    "parse_action": LocalSession._parse,
    "end_episode": LocalSession._end_episode,
    "dump": LocalSession._dump,
    "load": LocalSession._load,
}
OPERATIONS: Final = frozenset(_OF_LOCAL)
"""Names of a session's operations."""


async def _at_once(method: Callable[[], T]) -> T:
    found = method()
    assert not inspect.isawaitable(found)
    return found


def _own(info: StepInfo) -> dict[str, Any]:
    """Return the environment's own keys of a turn's ``info``."""
    return {name: value for name, value in info.items() if name not in _SENT_APART}


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task whose caller may be gone, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
