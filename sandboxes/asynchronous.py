"""A sandbox for code on an event loop: the same calls, each waited for without holding the loop up."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from agentgym.env.worker_thread import WorkerThread
from agentgym.sandbox import ExecResult, FileInfo, Sandbox, Snapshot
from agentgym.sandboxes.worker_sandbox import RunOptions


class AsyncSandbox:
    """Awaitable calls to one sandbox, made one after the other in a thread of its own.

    Options are those of the calls of :class:`~agentgym.sandbox.Sandbox`. Giving up on a call (cancellation, a time-out
    of the caller) does not end it; its own ``timeout_s`` does, or :meth:`close`.

    Example:
        >>> from agentgym.sandboxes.process import ProcessSandbox
        >>> async def greeting() -> str:
        ...     async with AsyncSandbox(ProcessSandbox()) as sandbox:
        ...         return (await sandbox.exec("echo hello")).stdout
        >>> asyncio.run(greeting())
        'hello\\n'
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._thread = WorkerThread(f"sandbox {sandbox.id}")
        self._closer = WorkerThread(f"sandbox {sandbox.id} closer")  # its close() must not wait for a call

    async def exec(self, command: str | list[str], **options: Unpack[RunOptions]) -> ExecResult:
        """Run a shell line or a program."""
        return await self._thread.call(partial(self.sandbox.exec, command, **options))

    async def run_python(self, code: str, **options: Unpack[RunOptions]) -> ExecResult:
        """Run Python in a fork of a warm interpreter."""
        return await self._thread.call(partial(self.sandbox.run_python, code, **options))

    async def read(self, path: str) -> bytes:
        """A file's content."""
        return await self._thread.call(self.sandbox.read, path)

    async def write(self, path: str, data: str | bytes) -> None:
        """Write a whole file."""
        await self._thread.call(self.sandbox.write, path, data)

    async def list(self, path: str = ".", *, recursive: bool = False) -> tuple[FileInfo, ...]:
        """A folder's entries."""
        return await self._thread.call(partial(self.sandbox.list, path, recursive=recursive))

    async def snapshot(self) -> Snapshot:
        """The workspace's files as they are now."""
        return await self._thread.call(self.sandbox.snapshot)

    async def restore(self, snapshot: Snapshot) -> None:
        """Make the workspace's files what they were then."""
        await self._thread.call(self.sandbox.restore, snapshot)

    async def close(self) -> None:
        """End it; a call under way fails."""
        await self._closer.call(self.sandbox.close)
        self._thread.stop()
        self._closer.stop()

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
