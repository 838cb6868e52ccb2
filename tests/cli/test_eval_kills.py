"""An evaluation that is killed again and again ends as one that was not, with each episode counted once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym.evals.episodes import read_groups, read_rows

WORLD = """
import time

from agentgym import ToolEnv, register, tool


class Guess(ToolEnv):
    is_blocking = True

    def start(self, task):
        self.secret = int(self.np_random.integers(1, 4))
        return "Guess."

    @tool
    def guess(self, number: int) -> str:
        \"\"\"Guess the number.\"\"\"
        time.sleep(0.02)
        if number == self.secret:
            self.finish(1.0)
        return "Correct." if number == self.secret else "Wrong."

    def admissible_actions(self):
        return tuple(f"guess: {n}" for n in (1, 2, 3))


register("Guess-v0", Guess, max_turns=3)
"""
NUM_KILLS = 10
NUM_TASKS, NUM_REPEATS = 20, 3


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    line = [sys.executable, "-m", "agentgym", "eval", *words, "--num-envs", "2", "--json"]
    return subprocess.Popen(line, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def num_rows(folder: Path) -> int:
    path = folder / "episodes.jsonl"
    return len(path.read_bytes().splitlines()) if path.is_file() else 0


@pytest.mark.slow
def test_ten_kills_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(WORLD)
    begin = ["world.py:Guess-v0", "--policy", "random", "--episodes", str(NUM_TASKS), "--repeats", str(NUM_REPEATS)]
    whole = ended(command(tmp_path, *begin, "--run-dir", "whole"))
    folder = tmp_path / "killed"
    # kills between ever later episodes, some of them in the middle of a line, of the record, or of none
    marks = sorted(np.random.default_rng(0).choice(NUM_TASKS * NUM_REPEATS - 1, NUM_KILLS, replace=False).tolist())
    words = [*begin, "--run-dir", "killed"]
    num_killed = 0
    for mark in marks:
        process = command(tmp_path, *words)
        while process.poll() is None and num_rows(folder) <= mark:
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            num_killed += 1
        process.communicate()
        words = ["--resume", "killed"]
    assert num_killed == NUM_KILLS
    done = ended(command(tmp_path, *words))
    apart = {"run_dir": "", "mean_seconds": 0}
    assert {**done, **apart} == {**whole, **apart}
    keys = Counter((row["task_id"], row["seed"]) for row in read_rows(folder))
    assert (len(keys), set(keys.values())) == (NUM_TASKS * NUM_REPEATS, {1})

    def played(path: Path) -> list[tuple[Any, ...]]:
        episodes = [group.trajectories[0] for group in read_groups(path)]
        return [(e.task.id, e.seed, e.success, [turn.action.text for turn in e.turns]) for e in episodes]

    assert played(folder) == played(tmp_path / "whole")
