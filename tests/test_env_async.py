"""The asynchronous path: concurrent calls, hung tools, and environments that block."""

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
import threading

import pytest

from agentgym import Message, Task, ToolCall, ToolEnv, tool
from agentgym.errors import EnvError, EnvTimeoutError, boundary
from agentgym.types import Observation


def contents(observation: Observation) -> list[str]:
    return [message.text for message in observation]


class Meeting(ToolEnv):
    """Tools that wait for one another."""

    def start(self, task: Task) -> str:
        self.barrier = asyncio.Barrier(2)
        self.thread_barrier = threading.Barrier(2, timeout=10.0)
        self.order: list[str] = []
        return "Meet."

    @tool(parallel_safe=True)
    async def meet(self, name: str) -> str:
        """Wait for another."""
        async with asyncio.timeout(10.0):
            await self.barrier.wait()
        return f"{name} is there"

    @tool(parallel_safe=True, timeout_s=10.0)
    def meet_in_threads(self) -> str:
        """Wait for another, in a thread."""
        self.thread_barrier.wait()
        return "there"

    @tool
    async def note(self, word: str) -> str:
        """Write down."""
        await asyncio.sleep(0)
        self.order.append(word)
        return word

    @tool(timeout_s=0.01)
    async def sleep(self) -> str:
        """Sleep for ever."""
        await asyncio.Event().wait()
        return ""

    @tool(parallel_safe=True)
    async def crash(self) -> str:
        """Crash."""
        raise RuntimeError("broken")

    @tool(parallel_safe=True)
    async def linger(self) -> str:
        """Wait until cancelled."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.order.append("cancelled")
            raise
        return ""


def calls_of(*names: str, **arguments: str) -> Message:
    return Message("assistant", "", tuple(ToolCall(name, arguments) for name in names))


def test_parallel_safe_calls_run_at_the_same_time_and_answer_in_order() -> None:
    async def run() -> None:
        env = Meeting()
        await env.areset(seed=0)
        calls = (ToolCall("meet", {"name": "a"}), ToolCall("meet", {"name": "b"}))
        said, *_ = await env.astep(Message("assistant", "", calls))
        assert contents(said) == ["a is there", "b is there"]
        said, *_ = await env.astep(calls_of("meet_in_threads", "meet_in_threads"))
        assert contents(said) == ["there", "there"]
        await env.aclose()

    asyncio.run(run())


def test_other_calls_run_in_order() -> None:
    env = Meeting()
    env.reset(seed=0)
    env.step("\n".join(f"note: {word}" for word in "abc"))  # the synchronous path runs asynchronous tools too
    assert env.order == ["a", "b", "c"]


def test_a_hung_tool_is_a_timeout_of_the_infrastructure() -> None:
    async def run() -> None:
        env = Meeting()
        await env.areset(seed=0)
        with pytest.raises(EnvTimeoutError), boundary(EnvError, "env.step"):
            await env.astep("sleep")

    asyncio.run(run())


def test_a_crashed_call_leaves_no_sibling_behind() -> None:
    async def run() -> None:
        env = Meeting()
        await env.areset(seed=0)
        with pytest.raises(RuntimeError, match="broken"):
            await env.astep(calls_of("linger", "crash"))
        await asyncio.sleep(0)
        assert env.order == ["cancelled"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


class Ledger(ToolEnv):
    """Blocking, and bound to the thread that opened it: SQLite refuses any other."""

    is_blocking = True
    is_stopped = False

    def start(self, task: Task) -> str:
        self.rows = sqlite3.connect(":memory:")
        self.rows.execute("create table words (word text)")
        return threading.current_thread().name

    @tool
    def write(self, word: str) -> str:
        """Write a word down."""
        self.rows.execute("insert into words values (?)", (word,))
        return str(self.rows.execute("select count(*) from words").fetchone()[0])

    @tool
    def leave(self) -> str:
        """Exit the interpreter."""
        sys.exit(3)

    def stop(self) -> None:
        self.rows.close()
        self.is_stopped = True


def test_a_blocking_environment_keeps_to_one_thread_of_its_own() -> None:
    async def run() -> None:
        env = Ledger()
        (said,), _ = await env.areset(seed=0)
        assert said.text == "env Ledger"
        for count in ("1", "2"):
            assert contents((await env.astep("write: a"))[0]) == [count]
        await env.aclose()
        assert env.is_stopped
        await env.aclose()

    asyncio.run(run())
    env = Ledger()  # and in the caller's thread by the synchronous methods
    assert contents(env.reset(seed=0)[0]) == [threading.current_thread().name]
    assert contents(env.step("write: a")[0]) == ["1"]
    env.close()
    assert env.is_stopped


def test_an_environment_cannot_end_the_interpreter_from_its_thread() -> None:
    async def run() -> None:
        env = Ledger()
        await env.areset(seed=0)
        with pytest.raises(EnvError, match="SystemExit: 3"), boundary(EnvError, "env.step"):
            await env.astep("leave")
        await env.aclose()

    asyncio.run(run())


def test_a_hung_blocking_call_can_be_given_up_and_the_interpreter_exits() -> None:
    code = """
    import asyncio, threading
    from agentgym import Env

    class Hung(Env):
        is_blocking = True
        def start(self, task):
            return "hello"
        def respond(self, action):
            threading.Event().wait()

    async def main():
        env = Hung()
        await env.areset(seed=0)
        try:
            await asyncio.wait_for(env.astep("x"), 0.05)
        except TimeoutError:
            print("given up")
        await env.aclose()

    asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("given up\n", "")
