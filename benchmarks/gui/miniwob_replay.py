"""Replay episodes of MiniWoB++ in another process, and compare states and rewards.

Scripted policies and a fuzzing agent play the episodes.

OMP_NUM_THREADS=1 python benchmarks/gui/miniwob_replay.py --episodes 200 --out benchmarks/gui/miniwob-replay.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.envs.gui.fuzz import fuzz_action
from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.miniwob.solvers import SOLVERS
from agentgym.envs.gui.miniwob.tasks import TASKS
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.replay import PATIENT, Recording, differences, record, side_by_side

NUM_FUZZED = 12  # actions of a fuzzing agent, unless the episode ends before


def make_env() -> MiniWoBEnv:
    """Make the environment with default arguments, except for limits that suit a busy machine."""
    return MiniWoBEnv(pool=PATIENT)


def play(env: MiniWoBEnv, number: int) -> Recording:
    """Record an episode, tasks in turn: even ones by a fuzzing agent, odd ones by a scripted policy."""
    if number % 2:
        names = tuple(SOLVERS)
        return record(env, f"{names[number // 2 % len(names)]}-{number}", MiniWoBEnv.oracle)
    rng = np.random.default_rng(number)
    return record(env, f"{TASKS[number // 2 % len(TASKS)]}-{number}", lambda env: fuzz_action(env, rng), NUM_FUZZED)


def again(env: MiniWoBEnv, recording: dict[str, Any]) -> list[str]:
    """Replay a recording, given as JSON, in the other process and return the differences."""
    return differences(env, Recording.from_json(recording))


def measure(num_episodes: int, num_envs: int) -> dict[str, Any]:
    """Record in this process, and replay in another."""
    recordings = side_by_side(make_env, play, range(num_episodes), num_envs)
    done = subprocess.run(
        [sys.executable, __file__, "--replay", "--envs", str(num_envs)],
        input=json.dumps([one.to_json() for one in recordings]),
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return {
        "num_episodes": len(found),
        "num_fuzzed": len(recordings[::2]),
        "num_scripted": len(recordings[1::2]),
        "num_scripted_successes": sum(one.rewards[-1] == 1.0 for one in recordings[1::2]),
        "num_actions": sum(len(one.actions) for one in recordings),
        "num_equal": found.count([]),
        "different": {one.task.id: what for one, what in zip(recordings, found, strict=True) if what},
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--envs", type=int, default=4, help="episodes side by side")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--replay", action="store_true")
    given = parser.parse_args()
    if given.replay:
        print(json.dumps(side_by_side(make_env, again, json.load(sys.stdin), given.envs)))
    else:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        result = {
            "date": datetime.date.today().isoformat(),
            "commit": commit.stdout.strip(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
            "results": measure(given.episodes, given.envs),
        }
        text = json.dumps(result, indent=1)
        print(text)
        if given.out:
            given.out.write_text(text + "\n", encoding="utf-8")
    close_browsers()


if __name__ == "__main__":
    main()
