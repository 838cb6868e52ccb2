"""Worker processes for blocking environments, so that none of them blocks the server or stays after a hang.

Each process answers the requests of its sessions as the server itself would. If a process dies, its running episodes
fail. If an environment hangs in a thread, which nothing can end, the process is retired: it gets no more sessions and
is ended when its last session is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from agentgym.errors import EnvError, EnvTimeoutError, error_text
from agentgym.remote import wire
from agentgym.remote.wire import Step, View
from agentgym.server.frames import read_frame, write_frame
from agentgym.server.limits import ServerLimits
from agentgym.server.session import EnvSession
from agentgym.server.worker import CLOSE_S

GRACE_S: Final = 15.0
"""Seconds beyond the time limit after which a process that has not answered is killed."""
_OPEN_S: Final = 120.0
"""Seconds for making an environment, including the imports of a new process."""
_READ_AS: Final[Mapping[str, type[Any]]] = {"reset": View, "step": Step, "load": View}


class Worker:
    """A worker process and its pending requests."""

    def __init__(self, process: subprocess.Popen[bytes], writer: asyncio.StreamWriter) -> None:
        self.num_sessions = 0
        self.is_retired = False
        """True if an environment hangs in the process or the process has died, so that it gets no more sessions."""
        self._process, self._writer = process, writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._receiver: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._failure = ""

    @classmethod
    async def start(cls, names: Sequence[str], limits: ServerLimits) -> Worker:
        """Start a process that can make the named environments."""
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = (str(theirs.fileno()), wire.encode(asdict(limits)).decode(), *names)
            process = subprocess.Popen(
                [sys.executable, "-m", "agentgym.server.worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # output of environments must not mix with the server's output
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C goes to the server only, which then ends the process
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        worker = cls(process, writer)
        worker._receiver = asyncio.create_task(worker._receive(reader))
        return worker

    async def ask(self, limit_s: float, **request: Any) -> Any:
        """Send a request and return the reply, as plain values.

        Raises:
            EnvTimeoutError: the process did not answer in time and was killed.
            EnvError: the process has ended.
            AgentGymError: the error in the reply.
        """
        number = next(self._numbers)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            if self._process.poll() is not None:
                raise self._ended()
            write_frame(self._writer, wire.encode({**request, "id": number}))
            async with asyncio.timeout(limit_s):
                return await reply
        except TimeoutError:
            self.kill()
            raise EnvTimeoutError(f"a process of the server: no answer within {limit_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def kill(self) -> None:
        """End the process at once."""
        self.is_retired = True
        self._process.kill()

    def leave(self) -> None:
        """Count a closed session. When the last session of a retired process is closed, the process ends."""
        self.num_sessions -= 1
        if self.is_retired and not self.num_sessions:
            self.begin_to_close()

    def begin_to_close(self) -> asyncio.Task[None]:
        """Start a task that lets the process close its environments and then ends it."""
        self.is_retired = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return self._closing

    @property
    def is_closed(self) -> bool:
        """True if the process has ended and has been reaped."""
        return self._closing is not None and self._closing.done()

    async def _close(self) -> None:
        self._writer.close()  # the process ends when its input is closed
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S + 2.0):
                while self._process.poll() is None:
                    await asyncio.sleep(0.02)
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        if self._receiver is not None:
            await self._receiver

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            await self._settle_all(reader)
        except Exception as error:  # nobody may be left waiting, nor for a later request
            self._failure = f"its answers cannot be read: {error_text(error):.200}"
            self._process.kill()
        finally:
            self.is_retired = True
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 1.0)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(self._ended())

    async def _settle_all(self, reader: asyncio.StreamReader) -> None:
        """Hand out replies until the process closes its end."""
        while (frame := await read_frame(reader)) is not None:
            sent = wire.decode(frame)
            self.is_retired |= sent.get("is_left_behind", False)  # the hung thread cannot be ended, but the process can
            reply = self._waiting.get(sent["id"])
            if reply is None or reply.done():
                continue  # the caller has given up
            if "error" in sent:
                reply.set_exception(wire.error_from_json(sent["error"]))
            else:
                reply.set_result(sent["ok"])

    def _ended(self) -> EnvError:
        return EnvError(
            f"a process of the server, in which the environment ran, ended: {self._failure or _how(self._process)}"
        )


class WorkerSession(EnvSession):
    """A session whose environment is in a worker process."""

    def __init__(self, worker: Worker, opened: Mapping[str, Any], limit_s: float, key: str) -> None:
        super().__init__(key)
        self.worker = worker
        self.env_id, self.tools = opened["env"], ()
        self._there, self._limit_s = opened["session"], limit_s

    async def perform(self, op: str, fields: Mapping[str, Any]) -> Any:
        """Send an operation to the process."""
        asked = {**fields, "op": op, "session": self._there}
        asked.pop("seq", None)  # the server counts the durations
        found = await self.worker.ask(self._limit_s + GRACE_S, **asked)
        return wire.read(_READ_AS[op], found) if op in _READ_AS else found

    async def close(self) -> None:
        """Close the environment in its process."""
        await super().close()
        if not self.worker.is_retired:
            with suppress(Exception):
                await self.worker.ask(CLOSE_S + GRACE_S, op="close", session=self._there)
        self.worker.leave()


class Workers:
    """The worker processes of a server, which are started when they are needed.

    Args:
        names: references of the environments that clients may use.
        num_processes: most processes at the same time, at least 1; retired ones do not count.
    """

    def __init__(self, names: Sequence[str], limits: ServerLimits, num_processes: int) -> None:
        self._names, self._limits, self._num_processes = names, limits, num_processes
        self._workers: list[Worker] = []
        self._starting = asyncio.Lock()

    async def open(self, env: str, kwargs: Mapping[str, Any], key: str) -> WorkerSession:
        """Make an environment in the process with the fewest sessions.

        Raises:
            AgentGymError: the environment cannot be made.
        """
        worker = await self._least_busy()
        worker.num_sessions += 1
        try:
            facts = await worker.ask(_OPEN_S, op="describe", env=env, kwargs=kwargs)
            opened = await worker.ask(_OPEN_S, op="open", env=env, kwargs=kwargs)
        except BaseException:
            worker.leave()
            raise
        limit_s = max(self._limits.step_timeout_s, facts["longest_step_s"])
        session = WorkerSession(worker, opened, limit_s, key)
        session.tools = wire.read(wire.EnvFacts, facts).tools
        return session

    async def ask(self, **request: Any) -> Any:
        """Send a request about an environment or its tasks to any process."""
        worker = await self._least_busy()
        return await worker.ask(_OPEN_S, **request)

    async def close(self) -> None:
        """End every process."""
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.begin_to_close() for worker in workers))

    async def _least_busy(self) -> Worker:
        async with self._starting:
            for one in self._workers:
                if one.is_retired and not one.num_sessions:
                    one.begin_to_close()
            self._workers = [one for one in self._workers if not one.is_closed]
            usable = [one for one in self._workers if not one.is_retired]
            if len(usable) < self._num_processes and all(one.num_sessions for one in usable):
                self._workers.append(await Worker.start(self._names, self._limits))
                return self._workers[-1]
        return min(usable, key=lambda one: one.num_sessions)


def default_num_processes() -> int:
    """Return the default number of processes: one per core, at most 8."""
    return min(len(os.sched_getaffinity(0)), 8)


def _how(process: subprocess.Popen[bytes]) -> str:
    code = process.poll()
    if code is None:
        return "it closed its connection"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
