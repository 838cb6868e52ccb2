"""An environment that runs on a server."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from agentgym.env.arguments import plain_arguments
from agentgym.env.env import Env, Snapshot
from agentgym.env.tasks import LazyTasks
from agentgym.errors import EnvError, UsageError
from agentgym.remote import wire
from agentgym.remote.channel import Channel
from agentgym.remote.servers import Servers
from agentgym.remote.wire import EnvFacts, Step, TaskPage, View, key_of
from agentgym.types import Message, Observation, Task, ToolSpec

PAGE: Final = 256
"""Number of tasks fetched at a time."""
_described: dict[str, EnvFacts] = {}


class RemoteEnv(Env):
    """An environment on an :mod:`agentgym.server`, with the same results as in this process.

    The first reset opens a session on the server, and ``close`` closes it. The state of a snapshot stays on its server
    as long as that has room; if it has been dropped, the actions are replayed.

    Args:
        env: id of the environment on the server.
        url: ``ws://HOST:PORT``, or several separated by commas. Instances are distributed over the servers, and a
            server that does not answer is skipped.
        token_file: file with the control token; by default :func:`~agentgym.server_tokens.token_for` finds it.
        kwargs: arguments of the environment, passed to the server.

    Raises:
        UsageError: the address is malformed, the token is wrong, or the server has no such environment or argument.
        EnvError: no server answers.
    """

    def __init__(self, env: str, *, url: str, token_file: str = "", **kwargs: Any) -> None:
        self._render = kwargs.pop("render_mode", None)
        self._env, self._kwargs = env, plain_arguments(env, kwargs)
        self._servers = Servers(url, token_file)
        self._facts = self._describe()
        self._tools = self._facts.tools
        super().__init__(max_turns=self._facts.max_turns, render_mode=self._render)
        self.takes_words, self.success_outcome = self._facts.takes_words, self._facts.success_outcome  # type: ignore[misc]
        self.longest_step_s, self.reset_options = self._facts.longest_step_s, self._facts.reset_options  # type: ignore[misc]
        self.is_live = self._facts.is_live
        self._channel: Channel | None = None
        self._session = ""
        self._is_left = False
        """True if a request was cancelled, so that the session may still be busy with it."""
        self._sequence = itertools.count(1)
        self._view: View | None = None
        self._success = False
        self._info: Mapping[str, Any] = {}

    @property
    def env_id(self) -> str:
        """Id of the environment on the server."""
        return self._facts.env_id

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools of the running episode, or those of a new instance."""
        return self._tools

    @property
    def task_type(self) -> str:
        """Kind of the current task, as the server reports it."""
        return "" if self._view is None else self._view.task_type

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, which are fetched when they are used."""
        return RemoteTasks(self, split)

    # ---------------------------------------------------------------------------------------------------- episode

    def start(self, task: Task) -> Observation:
        """Reset the session. A new one is opened if there is none, or if the server has lost it."""
        return self._opening(self._wait(self._open_and_reset(task)))

    async def astart(self, task: Task) -> Observation:
        """Reset the session, as :meth:`start` does."""
        return self._opening(await self._awaited(self._open_and_reset(task)))

    def respond(self, action: Message) -> Observation:
        """Take a turn on the server."""
        return self._taken(self._wait(self._asked("step", action=action)))

    async def arespond(self, action: Message) -> Observation:
        """Take a turn on the server, as :meth:`respond` does."""
        return self._taken(await self._awaited(self._asked("step", action=action)))

    def end_episode(self) -> None:
        """Let the server free resources that only a running episode needs."""
        if self._session and not self._is_left:
            self._wait(self._asked("end_episode"))

    async def aend_episode(self) -> None:
        """Free the episode's resources, as :meth:`end_episode` does."""
        if self._session and not self._is_left:
            await self._awaited(self._asked("end_episode"))

    def stop(self) -> None:
        """Close the session without waiting for the server."""
        if self._channel is not None and self._session:
            self._channel.thread.submit(self._channel.close_session(self._session))
            self._session, self._is_left = "", False

    def is_success(self) -> bool:
        """Return True if the server reports that the episode is a success."""
        return self._success

    def own_info(self) -> Mapping[str, Any]:
        """Return the environment's own keys for ``info``."""
        return self._info

    def state_key(self) -> str:
        """Return the state key, which the server sent with its last answer."""
        if self._view is not None and self._view.is_key_observed:
            return key_of(self._view.observation)
        if self._view is not None and self._view.state_key is not None:
            return self._view.state_key
        return str(self._wait(self._asked("state_key")))

    def oracle(self) -> Message:
        """Return the next action of the gold policy on the server."""
        return wire.read(Message, self._wait(self._asked("oracle")))

    def admissible_actions(self) -> tuple[str, ...]:
        """Return the possible actions in the current state."""
        return tuple(self._wait(self._asked("admissible_actions")))

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Return the cheats that the conformance kit plays."""
        found = self._wait(self._asked("cheats"))
        return {name: [wire.read(Message, one) for one in actions] for name, actions in found.items()}

    def parse_action(self, text: str) -> Message:
        """Convert a person's input to an assistant message on the server."""
        return wire.read(Message, self._wait(self._asked("parse_action", text=text)))

    # -------------------------------------------------------------------------------------------------- snapshots

    def dump_state(self) -> RemoteState | None:
        """Let the server save a copy of the state; return None if the environment has no native snapshots."""
        return self._kept(self._wait(self._asked("snapshot")))

    async def adump_state(self) -> RemoteState | None:
        """Let the server save a copy of the state, as :meth:`dump_state` does."""
        return self._kept(await self._awaited(self._asked("snapshot")))

    def load_state(self, state: RemoteState) -> None:
        """Load a state that a server has saved."""
        self._opening(self._wait(self._open_and_load(state)))

    async def aload_state(self, state: RemoteState) -> None:
        """Load a state, as :meth:`load_state` does."""
        self._opening(await self._awaited(self._open_and_load(state)))

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot on its server, or by replaying the actions if the server has dropped its state.

        Raises:
            ReplayMismatchError: if the state reached is not the snapshot's.
        """
        try:
            super().restore(snapshot)
        except wire.NoStateError:
            super().restore(replace(snapshot, native=None))

    async def arestore(self, snapshot: Snapshot) -> None:
        """:meth:`restore` as a coroutine, for native snapshots.

        Raises:
            UsageError: the snapshot holds actions alone, which :meth:`astep` can replay.
            ReplayMismatchError: if the state reached is not the snapshot's.
        """
        try:
            await super().arestore(snapshot)
        except wire.NoStateError:
            await self.areset(seed=snapshot.seed, options={"task": snapshot.task})
            for action in snapshot.actions:
                await self.astep(action)
            self._check_state(snapshot)

    # ---------------------------------------------------------------------------------------------------- private

    def task_page(self, split: str, start: int, stop: int) -> TaskPage:
        """Fetch tasks ``start`` to ``stop`` (exclusive) of a split."""
        asked = {"env": self._env, "kwargs": self._kwargs, "split": split, "start": start, "stop": stop}
        return wire.read(TaskPage, self._wait(self._servers.ask("tasks", asked)))

    def _describe(self) -> EnvFacts:
        key = wire.encode([self._servers.urls, self._env, self._kwargs]).decode()
        if key not in _described:
            found = self._wait(self._servers.ask("describe", {"env": self._env, "kwargs": self._kwargs}))
            facts = wire.read(EnvFacts, found)
            if facts.version != wire.VERSION:
                raise UsageError(f"the server speaks version {facts.version} of the protocol, not {wire.VERSION}")
            _described[key] = facts
        return _described[key]

    async def _open(self, only: Channel | None = None) -> None:
        """Open a session at any server, or at a given one."""
        # with the key, a request that is repeated after a lost reply finds the session that it opened
        fields = {"env": self._env, "kwargs": self._kwargs, "key": os.urandom(16).hex()}
        self._channel, self._session = await self._servers.open(fields, only)
        self._sequence, self._is_left = itertools.count(1), False

    async def _open_and_reset(self, task: Task) -> Any:
        return await self._first_asked(None, "reset", task=task, seed=self.episode.seed)

    async def _first_asked(self, only: Channel | None, op: str, **fields: Any) -> Any:
        """Begin an episode, which needs nothing of a session that was lost in a restart, closed as idle, or left in the
        middle of a request.
        """
        if self._is_left:
            self.stop()
        if self._session:
            try:
                return await self._asked(op, **fields)
            except wire.NoSessionError:
                self.stop()
        await self._open(only)
        return await self._asked(op, **fields)

    def _kept(self, sent: Mapping[str, Any]) -> RemoteState | None:
        assert self._channel is not None
        return None if sent["state"] is None else RemoteState(self._channel.url, sent["state"])

    async def _open_and_load(self, state: RemoteState) -> Any:
        """Open a session on the server that holds the state, and load the state."""
        channel = self._servers.at(state.url)
        if channel is None:
            raise wire.NoStateError(f"{state.url} holds the state, but is not one of this environment's servers")
        if self._channel is not channel:
            self.stop()
        return await self._first_asked(channel, "restore", state=state.id)

    async def _asked(self, op: str, **fields: Any) -> Any:
        if self._channel is None or not self._session:
            raise EnvError(f"{self.env_id}: no session before reset()")
        if self._is_left:
            raise EnvError(f"{self.env_id}: a request was cancelled before its answer; reset the environment")
        asked = self._channel.submit(op, session=self._session, seq=next(self._sequence), **fields)
        try:
            return await asyncio.wrap_future(asked)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._is_left = True  # the server still works on it
            raise

    def _wait(self, work: Any) -> Any:
        """Run a coroutine in the channel's thread and wait for it in this thread."""
        done: Future[Any] = self._servers.thread.submit(work)
        try:
            return done.result()
        except KeyboardInterrupt:
            self._is_left = bool(self._session)
            done.cancel()
            raise

    async def _awaited(self, work: Any) -> Any:
        return await work

    def _opening(self, sent: Any) -> Observation:
        self._success, self._info = False, {}
        return self._seen(wire.read(View, sent))

    def _seen(self, view: View) -> Observation:
        self._view = view
        if view.tools is not None:
            self._tools = view.tools
        return view.observation

    def _taken(self, sent: Any) -> Observation:
        step = wire.read(Step, sent)
        for part in step.reward_parts:
            self.award(part.value, part.name, part.role)
        if not step.is_valid:
            self.refuse()
        if step.played is not None:
            self.play_instead(step.played)
        self._success, self._info = step.success, step.info
        if step.terminated:
            self.finish()
        elif step.truncated:
            self.truncate()
        return self._seen(step.view)


@dataclass(frozen=True, slots=True)
class RemoteState:
    """A reference to a snapshot's state: the server that holds it and its id there."""

    url: str
    id: str


class RemoteTasks(LazyTasks):
    """The tasks of a split on a server, fetched :data:`PAGE` at a time."""

    def __init__(self, env: RemoteEnv, split: str) -> None:
        self._env, self._split = env, split
        first = env.task_page(split, 0, PAGE)
        self._total = first.total
        self._known = dict(enumerate(first.tasks))

    def __len__(self) -> int:
        return self._total

    def task_at(self, index: int) -> Task:
        if index not in self._known:
            start = index - index % PAGE
            while start in self._known:  # the server ended the page before this task, since the tasks are large
                start += 1
            while index not in self._known:
                found = self._env.task_page(self._split, start, index - index % PAGE + PAGE).tasks
                if not found:
                    raise EnvError(f"{self._env.env_id}: the server has no task {index} of {self._split} any more")
                self._known.update(enumerate(found, start))
                start += len(found)
        return self._known[index]
