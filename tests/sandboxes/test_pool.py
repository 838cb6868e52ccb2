"""The warm pool: hands out what works, takes back as new, replaces what died, never lends one twice."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from agentgym.check import check_sandbox
from agentgym.errors import ClosedError, ConfigError, SandboxImageError, SandboxUnavailableError
from agentgym.sandbox import ExecResult, Limits, Sandbox
from agentgym.sandboxes.pool import SandboxPool
from agentgym.sandboxes.process import ProcessSandbox


def test_gives_the_same_sandbox_back_as_new() -> None:
    with SandboxPool(ProcessSandbox, num_ready=1, max_open=1) as pool:
        with pool.acquire() as first:
            first.write("secret", "of the first")
            name = first.id
        with pool.acquire() as second:
            assert second.id == name
            assert second.list() == ()
    assert pool.num_replaced == 0


def test_who_gave_back_can_do_nothing_more() -> None:
    with SandboxPool(ProcessSandbox, num_ready=1, max_open=1) as pool:
        first = pool.acquire()
        first.close()
        first.close()
        assert not first.alive()
        with pool.acquire() as second:
            with pytest.raises(ClosedError, match="given back"):
                first.write("late", "")
            assert second.list() == ()


def test_many_threads_never_share_one() -> None:
    in_use: set[str] = set()
    lock = threading.Lock()

    def episode(number: int) -> str:
        with pool.acquire() as sandbox:
            with lock:
                assert sandbox.id not in in_use
                in_use.add(sandbox.id)
            sandbox.write("number", str(number))
            found = sandbox.exec("cat number; ls | wc -l").stdout
            with lock:
                in_use.discard(sandbox.id)
        return found

    with SandboxPool(ProcessSandbox, num_ready=2, max_open=3) as pool:
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(episode, range(20))) == [f"{number}1\n" for number in range(20)]
        assert pool.num_open <= 3


def test_one_that_died_is_replaced_and_not_handed_out() -> None:
    opened: list[ProcessSandbox] = []

    def open_one() -> ProcessSandbox:
        opened.append(ProcessSandbox())
        return opened[-1]

    with SandboxPool(open_one, num_ready=1, max_open=2) as pool:
        pool.wait_until_ready()
        assert opened[0]._worker is not None
        opened[0]._worker.kill()
        opened[0]._worker.wait()
        with pool.acquire() as sandbox:
            assert sandbox.id != opened[0].id
            assert sandbox.exec("echo fine").stdout == "fine\n"
        assert pool.num_replaced == 1


def test_one_that_cannot_be_reset_is_replaced() -> None:
    class Stained(ProcessSandbox):
        def reset(self) -> None:
            raise SandboxUnavailableError("stained")

    with SandboxPool(Stained, num_ready=1, max_open=1) as pool:
        with pool.acquire() as first:
            name = first.id
        with pool.acquire() as second:
            assert second.id != name


def test_one_that_answers_and_runs_nothing_is_not_handed_out() -> None:
    opened: list[Sandbox] = []

    class Mute(ProcessSandbox):
        def run_python(self, code: str, **options: Any) -> ExecResult:
            return replace(super().run_python(code, **options), stdout="")

    def open_one() -> Sandbox:
        opened.append(ProcessSandbox() if opened else Mute())
        return opened[-1]

    with SandboxPool(open_one, num_ready=1, max_open=1) as pool, pool.acquire(timeout_s=20) as sandbox:
        assert len(opened) == 2 and sandbox.id == opened[1].id
        assert not opened[0].alive()


def test_given_back_in_the_middle_of_a_call() -> None:
    with SandboxPool(ProcessSandbox, num_ready=1, max_open=1) as pool:
        sandbox = pool.acquire()
        errors: list[type] = []

        def run() -> None:
            try:
                sandbox.exec("sleep 25")
            except ClosedError as error:
                errors.append(type(error))

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.2)
        sandbox.close()
        thread.join(20)
        assert errors == [ClosedError]
        with pool.acquire() as another:
            assert another.id != sandbox.id


def test_waits_no_longer_than_told() -> None:
    with SandboxPool(ProcessSandbox, num_ready=1, max_open=1) as pool, pool.acquire():
        with pytest.raises(SandboxUnavailableError, match="1 of 1 are open"):
            pool.acquire(timeout_s=0.2)


def test_what_cannot_be_opened_is_said_to_who_waits() -> None:
    def open_one() -> Sandbox:
        raise SandboxImageError("there is no image 'x' here")

    with SandboxPool(open_one, num_ready=1) as pool, pytest.raises(SandboxImageError, match="no image 'x'"):
        pool.acquire(timeout_s=20)


def test_a_closed_pool_ends_all_and_says_so() -> None:
    pool = SandboxPool(ProcessSandbox, num_ready=1, max_open=2)
    lent = pool.acquire()
    pool.close()
    pool.close()
    assert not lent.alive()
    with pytest.raises(ClosedError):
        pool.acquire()
    lent.close()


@pytest.mark.parametrize("numbers", [{"num_ready": 0}, {"num_ready": 3, "max_open": 2}])
def test_impossible_numbers(numbers: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="num_ready"):
        SandboxPool(ProcessSandbox, **numbers)


@pytest.mark.slow
def test_a_pooled_sandbox_keeps_the_contract() -> None:
    with SandboxPool(ProcessSandbox, num_ready=2, max_open=4) as pool:

        def acquire(limits: Limits) -> Sandbox:
            return pool.acquire() if limits == Limits() else ProcessSandbox(limits)

        report = check_sandbox(acquire)
    assert report.passed, str(report)
