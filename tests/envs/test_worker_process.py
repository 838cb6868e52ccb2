"""The child process behind an engine: answers, errors, death, silence, and no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentgym.envs.adapters.worker_process import WorkerProcess
from agentgym.errors import EnvError, EnvTimeoutError

WORKER = """
import json, sys, time
from agentgym.envs.adapters.worker_main import end_with
end_with(int(sys.argv[1]))
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "sleep":
        time.sleep(60)
    if request["op"] == "die":
        sys.exit("no more")
    if request["op"] == "refuse":
        print(json.dumps({"error": "ValueError: not that"}), flush=True)
    else:
        print(json.dumps({"said": request["text"] * request.get("times", 1)}), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], WorkerProcess]]:
    (tmp_path / "scripted_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    workers: list[WorkerProcess] = []

    def made() -> WorkerProcess:
        workers.append(WorkerProcess("scripted_worker"))
        return workers[-1]

    yield made
    for worker in workers:
        worker.close()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_answers_and_long_answers_too(start: Callable[[], WorkerProcess]) -> None:
    worker = start()
    assert worker.call(60, op="say", text="hello") == {"said": "hello"}
    assert len(worker.call(60, op="say", text="é", times=500_000)["said"]) == 500_000
    assert worker.is_alive


def test_an_error_is_an_answer(start: Callable[[], WorkerProcess]) -> None:
    worker = start()
    with pytest.raises(EnvError, match="not that"):
        worker.call(60, op="refuse")
    assert worker.call(60, op="say", text="still here") == {"said": "still here"}


def test_a_death_tells_its_last_words(start: Callable[[], WorkerProcess]) -> None:
    worker = start()
    with pytest.raises(EnvError, match=r"^the worker died with exit code 1: no more"):
        worker.call(60, op="die")
    with pytest.raises(EnvError, match="died"):
        worker.call(60, op="say", text="hello")


def test_a_killed_worker_is_an_env_error(start: Callable[[], WorkerProcess]) -> None:
    worker = start()
    worker.call(60, op="say", text="hello")
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(EnvError, match=r"^the worker died with exit code -9"):
        worker.call(60, op="say", text="hello")
    assert not worker.is_alive


def test_silence_is_a_timeout_and_the_end_of_the_worker(start: Callable[[], WorkerProcess]) -> None:
    worker = start()
    worker.call(60, op="say", text="hello")
    began = time.monotonic()
    with pytest.raises(EnvTimeoutError, match=r"'sleep'.* within 0.2 s"):
        worker.call(0.2, op="sleep")
    assert time.monotonic() - began < 5
    assert not worker.is_alive


def test_close_and_collection_end_it(start: Callable[[], WorkerProcess]) -> None:
    worker = start()
    worker.close()
    worker.close()
    assert not worker.is_alive
    collected = WorkerProcess("scripted_worker")
    pid = collected.pid
    del collected
    assert not is_running(pid)


PARENT = """
import os, sys
from agentgym.envs.adapters.worker_process import WorkerProcess
worker = WorkerProcess("scripted_worker")
worker.call(60, op="say", text="hello")
print(worker.pid, flush=True)
if sys.argv[1] == "busy":
    worker._process.stdin.write(b'{"op": "sleep"}\\n')
    worker._process.stdin.flush()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_killed_parent_leaves_no_orphan(state: str, start: Callable[[], WorkerProcess]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, state], env=environment, capture_output=True, text=True, check=False
    )
    assert parent.returncode == -9
    deadline = time.monotonic() + 10
    while is_running(int(parent.stdout)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int(parent.stdout))
