"""Engines in other processes, as an engine. Env workers import this module, and no torch with it."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from agentgym.engine import SamplingParams
from agentgym.errors import EngineError
from agentgym.trainers.ray.fleet import cause_of, first_line
from agentgym.types import Completion

_POLL_S = 0.2
Answer = TypeVar("Answer")


class NoWeightsError(EngineError):
    """The engine was restarted and has not received the policy's weights yet."""


class LostSessionError(EngineError):
    """The engine that began a session died with its cache, so the episode must be played again."""


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


async def _until_it_serves(handle: ActorHandle) -> None:
    while True:
        with suppress(RayError):
            if (await handle.ping.remote()).serial:
                return
        await asyncio.sleep(_POLL_S)
