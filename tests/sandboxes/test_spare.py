"""The process that waits for the next request: it is alone between jobs, never beside one, and can be lost."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym.errors import SandboxFileError
from agentgym.sandboxes.process import ProcessSandbox


@pytest.fixture
def sandbox() -> Iterator[ProcessSandbox]:
    sandbox = ProcessSandbox()
    yield sandbox
    sandbox.close()


def children(pid: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worker_of(sandbox: ProcessSandbox) -> int:
    """Process id of the worker as this process sees it. In a process namespace, jobs see other numbers."""
    assert sandbox._worker is not None
    (worker,) = children(sandbox._worker.pid) if sandbox._is_confined else [sandbox._worker.pid]
    return worker


BESIDE = "import os; above = os.getppid(); print(os.getpid(), open(f'/proc/{above}/task/{above}/children').read())"


def inside_number(pid: int) -> int:
    """Return the number that a process has in its own namespace."""
    (numbers,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
    return int(numbers.split()[-1])


def spare_of(worker: int) -> int:
    """Process id of the spare process, which may be forked a moment after the reply."""
    deadline = time.monotonic() + 10
    while not (found := children(worker)):
        assert time.monotonic() < deadline, "no process waits for the next request"
        time.sleep(0.01)
    (spare,) = found
    return spare


def test_a_job_runs_in_the_waiting_process_and_beside_no_other(sandbox: ProcessSandbox) -> None:
    worker = worker_of(sandbox)
    for _ in range(3):
        spare = inside_number(spare_of(worker))
        seen = sandbox.run_python(BESIDE).stdout
        assert [int(number) for number in seen.split()] == [spare, spare]


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_lost_waiting_process_is_replaced(is_asked: bool, sandbox: ProcessSandbox) -> None:
    worker = worker_of(sandbox)
    lost = spare_of(worker)
    os.kill(lost, signal.SIGKILL)
    while Path(f"/proc/{lost}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    if is_asked:
        assert sandbox.alive()
        assert spare_of(worker) != lost
    result = sandbox.run_python("print(1)")
    assert (result.exit_code, result.stdout, result.limit) == (0, "1\n", "")
    assert lost not in children(worker)


def test_a_waiting_process_ends_with_its_sandbox_and_with_a_reset(sandbox: ProcessSandbox) -> None:
    worker = worker_of(sandbox)
    before = spare_of(worker)
    sandbox.reset()
    assert not Path(f"/proc/{before}").exists()
    after = spare_of(worker)
    sandbox.close()
    assert not Path(f"/proc/{after}").exists()


def test_a_request_larger_than_a_pipe_arrives(sandbox: ProcessSandbox) -> None:
    text = "a" * 300_000
    assert sandbox.run_python(f"print(len({text!r}))").stdout == "300000\n"


def test_an_error_about_a_long_path_fits_into_one_page(sandbox: ProcessSandbox) -> None:
    with pytest.raises(SandboxFileError) as caught:
        sandbox.read("\U0001f600" * 900)
    assert len(str(caught.value)) < 400 and " ... " in str(caught.value)
