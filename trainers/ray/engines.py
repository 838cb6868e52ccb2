"""The engines of a run on a cluster, and the transfer of the trainer's weights to them."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from agentgym.engine import EngineHealth, SamplingParams
from agentgym.errors import EngineError
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.trainers.ray.config import ClusterConfig
from agentgym.trainers.ray.fleet import Fleet, FleetStats, Member, State, cause_of, first_line
from agentgym.trainers.ray.serving import NoWeightsError
from agentgym.trainers.ray.weights import pack
from agentgym.trainers.types import CausalLM
from agentgym.types import Completion

# ----------------------------------------------------------------------------- engines in other processes, as an engine

_POLL_S = 0.2
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Remote:
    handle: ActorHandle
    back: asyncio.Task[None] | None = None
    """Task that waits until the engine is ready again."""
    sessions: set[str] = field(default_factory=set)


class EngineClient:
    """An :class:`~agentgym.engine.Engine` over engine actors, which cannot change their weights.

    It is picklable. All requests of a session go to one engine. If that engine dies, the session's requests fail, and
    the episode is played again from its beginning. A new session goes to the available engine with the fewest sessions.

    Args:
        handles: handles of the actors.
        wait_s: seconds that a new session waits while no engine is available.
    """

    def __init__(self, handles: Sequence[ActorHandle], max_context_tokens: int, wait_s: float) -> None:
        self._handles, self.max_context_tokens, self._wait_s = tuple(handles), max_context_tokens, wait_s
        first = os.getpid() % len(self._handles)  # not every process begins with the same engine
        self._remotes = [_Remote(handle) for handle in (*self._handles[first:], *self._handles[:first])]
        self._sessions: dict[str, _Remote] = {}
        self._name = uuid.uuid4().hex
        """Prefix of session ids, so that a repeated episode does not find cached state of its first attempt."""

    def __reduce__(self) -> tuple[type[EngineClient], tuple[object, ...]]:
        return EngineClient, (self._handles, self.max_context_tokens, self._wait_s)

    @property
    def policy_version(self) -> int:
        """Not available here; only the trainer knows the version."""
        raise EngineError("an engine client does not know the version; each token carries its own")

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session_id: str = ""
    ) -> Completion:
        """Sample one completion.

        Raises:
            EngineError: the engine rejected the request or died, or no engine is available.
        """
        begins = session_id not in self._sessions
        remote = await self._remote_of(session_id)
        name = f"{self._name}-{session_id}" if session_id else ""
        ref = remote.handle.generate.remote(prompt_ids, sampling, name, begins)
        completion: Completion = await self._answer(remote, ref)
        return completion

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability (temperature 1) of each continuation token, given the prompt and earlier tokens.

        Raises:
            EngineError: the engine rejected the request or died, or no engine is available.
        """
        remote = await self._remote_of("")
        scores: tuple[float, ...] = await self._answer(remote, remote.handle.score.remote(prompt_ids, continuation_ids))
        return scores

    async def release(self, session_id: str) -> None:
        """Drop the cached state of a session that has ended; unknown ids are ignored."""
        remote = self._sessions.pop(session_id, None)
        if remote is not None:
            remote.sessions.discard(session_id)
            remote.handle.release.remote(f"{self._name}-{session_id}")

    async def update_weights(self, version: int) -> None:
        """Raise an error: only the trainer's own engine can change weights."""
        raise EngineError("an engine client cannot change weights")

    async def close(self) -> None:
        """Do nothing: the engines belong to the run."""
        for remote in self._remotes:
            if remote.back is not None:
                remote.back.cancel()

    async def _answer(self, remote: _Remote, ref: Awaitable[Answer]) -> Answer:
        try:
            return await ref
        except RayTaskError as error:
            cause = cause_of(error)
            if isinstance(cause, NoWeightsError):
                self._leave_out(remote)
            raise cause if isinstance(cause, EngineError) else EngineError(str(cause)) from None
        except RayError as error:
            self._leave_out(remote)
            raise EngineError(f"the engine was lost: {first_line(error)}") from None

    async def _remote_of(self, session_id: str) -> _Remote:
        kept = self._sessions.get(session_id)
        if kept is not None:
            return kept
        if not (fit := self._fit()):
            waiting = [remote.back for remote in self._remotes if remote.back is not None]
            await asyncio.wait(waiting, timeout=self._wait_s, return_when=asyncio.FIRST_COMPLETED)
            if not (fit := self._fit()):
                raise EngineError(f"no engine was ready for {self._wait_s:g} s")
        remote = min(fit, key=lambda remote: len(remote.sessions))
        if session_id:
            self._sessions[session_id] = remote
            remote.sessions.add(session_id)
        return remote

    def _fit(self) -> list[_Remote]:
        return [remote for remote in self._remotes if remote.back is None or remote.back.done()]

    def _leave_out(self, remote: _Remote) -> None:
        if remote.back is None or remote.back.done():
            remote.back = asyncio.ensure_future(_until_it_serves(remote.handle))


def _sum(values: Sequence[int | None]) -> int | None:
    """Return the sum, or None if there are no values or one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


async def _until_it_serves(handle: ActorHandle) -> None:
    while True:
        with suppress(RayError):
            if (await handle.ping.remote()).serial:
                return
        await asyncio.sleep(_POLL_S)


# --------------------------------------------- the run's engines on a cluster: who brings the trainer's weights to them


@dataclass(frozen=True, slots=True)
class _Target:
    """The weights that every engine must serve."""

    serial: int
    version: int
    weights: ObjectRef
    """A reference to the packed weights."""


class RayEngine(EngineClient):
    """The trainer's :class:`~agentgym.engine.Engine`; pickled, it becomes an :class:`EngineClient`.

    Args:
        model: the trainer's model, whose weights :meth:`update_weights` sends.
        update_timeout_s: seconds within which new weights must reach the engines.
        for_vllm: True if the engines are vLLM servers, which prove by checksum that they use the given weights.
    """

    def __init__(
        self,
        handles: Sequence[ActorHandle],
        model: CausalLM,
        config: ClusterConfig,
        *,
        max_context_tokens: int,
        update_timeout_s: float,
        for_vllm: bool = False,
    ) -> None:
        super().__init__(handles, max_context_tokens, config.wait_s)
        self._model, self._update_timeout_s, self._for_vllm = model, update_timeout_s, for_vllm
        self._fleet = Fleet("engine", handles, config, self._admit)
        self._target: _Target | None = None

    @property
    def policy_version(self) -> int:
        """Version of the weights sent last."""
        return self._target.version if self._target else 0

    @property
    def server_stats(self) -> FleetStats:
        """Counters since the engine was created; always the same object."""
        return self._fleet.stats

    def health(self) -> EngineHealth:
        """Return the load of the engines that answer, as of their last health checks, and the counters of all starts.

        A restarted engine begins its counters at 0. A number is None if an engine does not report it.
        """
        members = self._fleet.members
        reports = {name: one.health for name, one in self._fleet.found.items() if one.health is not None}
        now = [reports[m.incarnation] for m in members if m.state is not State.OUT and m.incarnation in reports]
        out = [member.reason for member in members if member.state is State.OUT]
        return EngineHealth(
            running=sum(report.running for report in now),
            queued=_sum([report.queued for report in now]),
            servers=len(members),
            ready=len(members) - len(out),
            fault=out[0] if out else "",
            cache_use=max((use for report in now if (use := report.cache_use) is not None), default=None),
            preempted=_sum([report.preempted for report in reports.values()]),
            prefix_tokens=_sum([report.prefix_tokens for report in reports.values()]),
            prefix_hits=_sum([report.prefix_hits for report in reports.values()]),
        )

    async def connect(self, say: Callable[[str], None]) -> None:
        """Wait for the first engine.

        Raises:
            ConfigError: none came up in time.
        """
        self._fleet.say = say
        await self._fleet.wait_for_one()

    async def update_weights(self, version: int) -> None:
        """Send the model's current weights, as ``version``, to every engine that answers.

        Other engines receive them when they are back, before they serve.

        Raises:
            EngineError: no engine accepted the weights in time.
        """
        self._fleet.start()
        serial = self._target.serial + 1 if self._target else 1
        self._target = _Target(serial, version, ray.put(pack(self._model, version, for_vllm=self._for_vllm)))
        members = self._fleet.members
        for member in members:
            if member.state is State.READY:
                member.state = State.UPDATING
            member.wake.set()

        def settled() -> bool:
            states = [member.state for member in members]
            return State.READY in states and State.UPDATING not in states

        await self._fleet.changes.until(settled, self._update_timeout_s)
        if not any(member.state is State.READY for member in members):
            raise EngineError(
                f"no engine took the weights of version {version} within {self._update_timeout_s:g} s: "
                + self._fleet.reasons()
            )

    async def close(self) -> None:
        """End the engines; a second call does nothing."""
        await super().close()
        await self._fleet.close()

    async def _admit(self, member: Member, found: ActorState) -> None:
        """Load the current target weights into a restarted engine; the target may change in the meantime."""
        serial = found.serial
        while self._target is None or serial != self._target.serial:
            if (target := self._target) is None:
                await member.wake.wait()
                member.wake.clear()
                continue
            member.state = State.UPDATING
            sent = member.handle.load.remote(target.weights, target.serial)
            loading = asyncio.wrap_future(sent.future())
            await asyncio.wait({loading}, timeout=self._update_timeout_s)
            if not loading.done():
                ray.kill(member.handle, no_restart=False)  # whatever it holds, it must not serve it
                raise GetTimeoutError(f"it did not take version {target.version} in {self._update_timeout_s:g} s")
            loading.result()
            serial = target.serial
