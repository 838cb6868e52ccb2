"""Two processes never write the folder of a run or an evaluation at the same time."""

from __future__ import annotations

import asyncio
import errno
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from testkit.worlds import Counter

from agentgym.errors import UsageError
from agentgym.evals.runner import evaluate
from agentgym.rollout.agent import ScriptedAgent
from agentgym.rollout.folder_lock import LOCK_NAME, locked
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.types import Task


def test_a_folder_that_cannot_be_written_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UsageError, match=r"run cannot be written \(Read-only file system\).* a copy of it"):
        with locked(tmp_path / "run"):
            pass


HOLD = """
import sys
from pathlib import Path
from agentgym.rollout.folder_lock import locked
with locked(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "data").write_text("x")
    print("held", flush=True)
    sys.stdin.read()
"""


def evaluate_in(folder: Path, resume: bool = False) -> int:
    pool = EnvPool(Counter, 1)
    tasks = [Task(id=f"t-{seed}", split="test", seed=seed) for seed in range(3)]
    summary = asyncio.run(
        evaluate(
            tasks,
            pool,
            lambda env, seed: ScriptedAgent(lambda _: env.oracle()),
            out_dir=folder,
            suite_or_env="Counter",
            policy="oracle",
            seed=0,
            group_config=GroupConfig(group_size=1, min_valid=1, num_envs=1),
            resume=resume,
        )
    )
    return summary.num_episodes


def test_a_folder_is_held_by_one_process_and_freed_when_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"written by process {holder.pid} on"), locked(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with locked(tmp_path):
        pass
    assert (tmp_path / "data").read_text() == "x"


def test_who_waits_for_a_folder_gets_it_when_it_is_free(tmp_path: Path) -> None:
    got = threading.Event()

    def wait_for_it() -> None:
        with locked(tmp_path, wait_s=600):
            got.set()

    with locked(tmp_path):
        (tmp_path / "data").touch()
        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        assert not got.wait(0.5)
    waiting.join()
    assert got.is_set()


def test_an_evaluation_is_not_resumed_twice_at_once(tmp_path: Path) -> None:
    assert evaluate_in(tmp_path) == 3
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != LOCK_NAME}
    with locked(tmp_path), pytest.raises(UsageError, match="is being written by"):
        evaluate_in(tmp_path, resume=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != LOCK_NAME} == before
    assert evaluate_in(tmp_path, resume=True) == 3
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 3


def test_a_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path / "new" / "run"):
        raise RuntimeError
    assert not (tmp_path / "new" / "run").exists()


def test_a_folder_that_was_deleted_hides_no_other_error(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="the real one"), locked(folder):
        shutil.rmtree(folder)
        raise RuntimeError("the real one")
