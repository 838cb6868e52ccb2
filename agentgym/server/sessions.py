"""All sessions of a server: opened up to a limit, looked up by id, closed when their clients are gone."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agentgym.canonical import digest, is_whole
from agentgym.env.env import Env
from agentgym.env.worker_thread import call_in_own_thread
from agentgym.errors import AgentGymError, EnvError, UsageError, boundary, unknown_name
from agentgym.registry import creator_of, find, make
from agentgym.remote import wire
from agentgym.remote.wire import BusyError, EnvFacts, ForbiddenError, NoSessionError, NoStateError, TaskPage
from agentgym.server.limits import ServerLimits
from agentgym.server.session import OPERATIONS, EnvSession, LocalSession
from agentgym.server.untrusted import UntrustedClients
from agentgym.types import Task

if TYPE_CHECKING:
    from agentgym.server.workers import Workers


# ------------------------------------------------------------------------- storage for states of snapshots on a server


class States:
    """States by id. The oldest are dropped when there is no more space.

    Args:
        max_bytes: most bytes of all states together.

    Example:
        >>> states = States(max_bytes=10)
        >>> first, second = states.add("12345"), states.add("123456")
        >>> states.find(second)
        '123456'
        >>> states.find(first)
        Traceback (most recent call last):
        agentgym.remote.wire.NoStateError: the server does not hold this state any more
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._by_id: OrderedDict[str, str] = OrderedDict()

    def add(self, state: str | None) -> str | None:
        """Store a state and return its id, or None if the state is None or too large."""
        if state is None or len(state) > self._max_bytes:
            return None
        identity = secrets.token_urlsafe(18)
        self._by_id[identity] = state
        self._num_bytes += len(state)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._by_id.popitem(last=False)[1])
        return identity

    def find(self, identity: object) -> str:
        """Return a state and mark it as the most recently used.

        Raises:
            NoStateError: the state was dropped or never existed.
        """
        if not isinstance(identity, str) or identity not in self._by_id:
            raise NoStateError("the server does not hold this state any more")
        self._by_id.move_to_end(identity)
        return self._by_id[identity]


MAX_TEMPLATES: Final = 32
"""Most instances that are kept to answer requests about environments and tasks."""
MAX_PAGE: Final = 1024
_DRAIN_RETRY_S: Final = 5.0
_WITHOUT_SESSION: Final = frozenset({"heartbeat", "open", "describe", "tasks"})
_OF_SESSIONS: Final = frozenset({"close", "snapshot", "restore"})
"""Operations that the server executes itself, with a session."""
_INNER: Final = frozenset({"dump", "load"})
"""Operations that unpickle data, which clients may therefore not request."""


class Sessions:
    """The sessions of a server.

    Args:
        names: references of the environments that clients may use.
        limits: limits on sessions and requests.
        workers: processes for blocking environments; None for threads of this process.
        serves_server: True in a worker process, whose client is the server, which stores states of snapshots itself.
        trusts_clients: False if clients have no token, so that they may not choose paths and sandboxes.
    """

    def __init__(
        self,
        names: Sequence[str],
        limits: ServerLimits,
        workers: Workers | None = None,
        *,
        serves_server: bool = False,
        trusts_clients: bool = True,
    ) -> None:
        self.limits = limits
        self._untrusted = None if trusts_clients else UntrustedClients()
        self._workers = workers
        self._serves_server = serves_server
        self._states = States(limits.max_state_bytes)
        self.is_draining = False
        self.counts: Counter[str] = Counter()
        self._names = {name: find(name).id for name in names}
        self._by_id: dict[str, EnvSession] = {}
        self._by_agent_token: dict[str, EnvSession] = {}
        self._by_key: dict[str, asyncio.Future[EnvSession]] = {}
        self._num_opening = 0
        self._templates: dict[str, tuple[Env, dict[str, Sequence[Task]]]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def env_ids(self) -> list[str]:
        """Ids of the environments that clients may use."""
        return sorted(self._names.values())

    async def ask(self, request: Mapping[str, Any]) -> Any:
        """Answer a trainer's request.

        Raises:
            AgentGymError: the request is wrong, or the environment failed.
        """
        op = request.get("op")
        self.counts["requests"] += 1
        if self._untrusted is not None:
            self._untrusted.check(request)
        if op == "heartbeat":
            return self.renew(request.get("sessions"))
        if op == "open":
            session = await self.open(request.get("env"), request.get("kwargs"), request.get("key"))
            return {
                "session": session.id,
                "agent_token": session.agent_token,
                "env": session.env_id,
                "idle_timeout_s": self.limits.idle_timeout_s,
            }
        if op == "describe":
            return await self.describe(request.get("env"), request.get("kwargs"))
        if op == "tasks":
            page = await self.task_page(request)
            if self._untrusted is not None:
                self._untrusted.remember(page.tasks)
            return page
        known = _OF_SESSIONS | OPERATIONS if self._serves_server else (_OF_SESSIONS | OPERATIONS) - _INNER
        if not isinstance(op, str) or op not in known:
            raise UsageError(f"no operation {str(op)[:60]!r}; there are {', '.join(sorted(known | _WITHOUT_SESSION))}")
        session = self.find(request.get("session"))
        if op == "close":
            await self.close(session)
            return None
        return await self._ask_session(session, op, request)

    async def _ask_session(self, session: EnvSession, op: str, request: Mapping[str, Any]) -> Any:
        sequence = request.get("seq")
        if sequence is not None and (not is_whole(sequence) or sequence < 1):
            raise UsageError("seq must be a whole number from 1 on")
        if op == "step":
            self.counts["steps"] += 1
        if op == "snapshot":
            return {"state": self._states.add(await session.ask("dump", {}, sequence))}
        if op == "restore":
            return await session.ask("load", {"state": self._states.find(request.get("state"))}, sequence)
        return await session.ask(op, request, sequence)

    # -------------------------------------------------------------------------------------------------- lifetimes

    async def open(self, env: Any, kwargs: Any = None, key: Any = None) -> EnvSession:
        """Open a session with a new environment.

        Args:
            env: reference of the environment.
            kwargs: its arguments.
            key: a key chosen by the client; a second request with the same key gets the same session.

        Raises:
            BusyError: the server is full or shutting down.
            UsageError: there is no such environment or argument.
            EnvError: the environment cannot be made.
        """
        if isinstance(key, str) and key in self._by_key:
            return await asyncio.shield(self._by_key[key])
        if self.is_draining:
            raise BusyError("the server is shutting down", _DRAIN_RETRY_S)
        if len(self) + self._num_opening >= self.limits.max_sessions:
            self.counts["refused"] += 1
            raise BusyError(f"the server has {self.limits.max_sessions} sessions, as many as its --max-sessions", 1.0)
        future: asyncio.Future[EnvSession] = asyncio.get_running_loop().create_future()
        if isinstance(key, str):
            self._by_key[key] = future
        self._num_opening += 1
        try:
            session = await self._opened(env, kwargs, key if isinstance(key, str) else "")
        except BaseException as error:
            if isinstance(key, str):
                del self._by_key[key]
            future.set_exception(error if isinstance(error, AgentGymError) else EnvError(f"not opened: {error!r}"))
            future.exception()
            raise
        finally:
            self._num_opening -= 1
        self._by_id[session.id] = session
        self._by_agent_token[session.agent_token] = session
        self.counts["opened"] += 1
        future.set_result(session)
        return session

    def find(self, session: Any) -> EnvSession:
        """Return a session by its id.

        Raises:
            NoSessionError: there is no such session.
        """
        found = self._by_id.get(session) if isinstance(session, str) else None
        if found is None:
            raise NoSessionError("the server has no such session: it was closed, idle too long, or lost in a restart")
        return found

    def of_agent(self, token: str) -> EnvSession:
        """Return the session of an agent token.

        Raises:
            ForbiddenError: no session has this agent token.
        """
        found = self._by_agent_token.get(token)
        if found is None or not hmac.compare_digest(found.agent_token, token):
            raise ForbiddenError("no session has this agent token")
        return found

    def renew(self, sessions: Any) -> list[str]:
        """Keep sessions alive and return the ids of those that no longer exist."""
        if not isinstance(sessions, list) or not all(isinstance(one, str) for one in sessions):
            raise UsageError("sessions must be a list of session ids")
        now = time.monotonic()
        for session in sessions:
            if session in self._by_id:
                self._by_id[session].last_seen = now
        return [session for session in sessions if session not in self._by_id]

    async def close(self, session: EnvSession) -> None:
        """Close a session and forget it."""
        if self._by_id.pop(session.id, None) is None:
            return
        self._by_agent_token.pop(session.agent_token, None)
        self._by_key.pop(session.key, None)
        self.counts["closed"] += 1
        await session.close()

    async def reap(self) -> int:
        """Close the sessions whose clients are gone and return their number."""
        oldest = time.monotonic() - self.limits.idle_timeout_s
        idle = [one for one in self._by_id.values() if one.last_seen < oldest and not one.is_busy]
        for session in idle:
            await self.close(session)
            self.counts["reaped"] += 1
        return len(idle)

    async def close_all(self) -> None:
        """Close every session."""
        for session in list(self._by_id.values()):
            await self.close(session)
        for env, _ in self._templates.values():
            await env.aclose()
        self._templates.clear()
        if self._workers is not None:
            await self._workers.close()

    # -------------------------------------------------------------------------------------- about an environment

    async def describe(self, env: Any, kwargs: Any = None) -> EnvFacts:
        """Return the facts that hold for every episode of an environment.

        Raises:
            UsageError: there is no such environment or argument.
        """
        if workers := self._workers_for(env, kwargs):
            return wire.read(EnvFacts, await workers.ask(op="describe", env=env, kwargs=kwargs))
        made, _ = await self._template(env, kwargs)
        return EnvFacts(
            version=wire.VERSION,
            env_id=made.env_id,
            max_turns=made.max_turns,
            takes_words=made.takes_words,
            success_outcome=made.success_outcome,
            longest_step_s=made.longest_step_s,
            is_live=bool(made.is_live),
            reset_options=tuple(made.reset_options),
            tools=made.tools,
        )

    async def task_page(self, request: Mapping[str, Any]) -> TaskPage:
        """Return tasks ``start`` to ``stop`` of a split, at most :data:`MAX_PAGE`.

        Raises:
            UsageError: there is no such environment or split, or an index is not a whole number from 0.
        """
        split, start, stop = request.get("split"), request.get("start", 0), request.get("stop", MAX_PAGE)
        if not isinstance(split, str) or not is_whole(start) or not is_whole(stop) or start < 0:
            raise UsageError("expected a split by name, and start and stop as whole numbers from 0 on")
        if workers := self._workers_for(request.get("env"), request.get("kwargs")):
            asked = {"env": request["env"], "kwargs": request.get("kwargs"), "split": split}
            return wire.read(TaskPage, await workers.ask(op="tasks", **asked, start=start, stop=stop))
        made, by_split = await self._template(request.get("env"), request.get("kwargs"))
        if split not in by_split:
            by_split[split] = made.tasks(split)
        tasks = by_split[split]
        return TaskPage(
            total=len(tasks), tasks=tuple(wire.fitting(tasks[start : max(start, min(stop, start + MAX_PAGE))]))
        )

    async def _template(self, env: Any, kwargs: Any) -> tuple[Env, dict[str, Sequence[Task]]]:
        key = digest([str(env), kwargs or {}])
        if key not in self._templates:
            while len(self._templates) >= MAX_TEMPLATES:
                oldest = next(iter(self._templates))
                await self._templates.pop(oldest)[0].aclose()
            self._templates[key] = (await self._made(env, kwargs), {})
        return self._templates[key]

    async def _opened(self, env: Any, kwargs: Any, key: str) -> EnvSession:
        if workers := self._workers_for(env, kwargs):
            return await workers.open(env, kwargs or {}, key)
        return LocalSession(await self._made(env, kwargs), self.limits, key)

    def _reference(self, env: Any, kwargs: Any) -> str:
        if not isinstance(env, str):
            raise UsageError(
                f"env must be the id of an environment, got {env!r:.100}; there are {', '.join(self._names)}"
            )
        if env not in {*self._names, *self._names.values()}:
            raise unknown_name("environment of this server:", env[:100], self._names)
        if not isinstance(kwargs or {}, Mapping):
            raise UsageError("kwargs must be an object")
        return self._names.get(env, env)

    def _workers_for(self, env: Any, kwargs: Any) -> Workers | None:
        """Return the processes in which an environment runs, or None if it runs in this process."""
        return self._workers if _is_blocking(self._reference(env, kwargs)) else None

    async def _made(self, env: Any, kwargs: Any) -> Env:
        """Make an environment; a blocking one in a thread, so that the server stays responsive."""
        reference = self._reference(env, kwargs)
        with boundary(EnvError, f"making {reference}"):
            return await _made_where_it_may(reference, dict(kwargs or {}))


async def _made_where_it_may(reference: str, kwargs: dict[str, Any]) -> Env:
    if _is_blocking(reference):
        return await call_in_own_thread(partial(make, reference, **kwargs))
    return make(reference, **kwargs)


def _is_blocking(reference: str) -> bool:
    return bool(getattr(creator_of(find(reference)), "is_blocking", False))
