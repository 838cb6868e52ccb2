"""The awaitable sandbox: the loop goes on during a call, and close() ends one."""

import asyncio

import pytest

from agentgym.errors import ClosedError, SandboxFileError
from agentgym.sandboxes.asynchronous import AsyncSandbox
from agentgym.sandboxes.process import ProcessSandbox


async def use() -> None:
    async with AsyncSandbox(ProcessSandbox()) as sandbox:
        await sandbox.write("a", "1")
        saved = await sandbox.snapshot()
        await sandbox.exec(["rm", "a"])
        with pytest.raises(SandboxFileError):
            await sandbox.read("a")
        await sandbox.restore(saved)
        assert [info.path for info in await sandbox.list()] == ["a"]
        call = asyncio.create_task(sandbox.run_python("import time; time.sleep(25)"))
        await asyncio.sleep(0.3)
        assert not call.done()
    with pytest.raises(ClosedError):
        await call


def test_calls_do_not_hold_the_loop_up() -> None:
    asyncio.run(use())
