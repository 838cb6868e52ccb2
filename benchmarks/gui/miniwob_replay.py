"""Whether episodes of MiniWoB++ by a fuzzing agent replay in another process with equal states and rewards.

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

from agentgym.check.policies import random_action
from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.miniwob.tasks import TASKS
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.replay import Recording, differences, record


def recorded(num_episodes: int, max_turns: int) -> list[Recording]:
    """Episodes of random actions, the tasks in turn."""
    env, rng = MiniWoBEnv(), np.random.default_rng(0)
    names = [f"{TASKS[number % len(TASKS)]}-{number // len(TASKS)}" for number in range(num_episodes)]
    found = [record(env, name, lambda env: random_action(env, (), rng), max_turns) for name in names]
    env.close()
    return found


def replay() -> None:
    """In the other process: recordings in, differences out, a line of JSON each."""
    env = MiniWoBEnv()
    for line in sys.stdin:
        print(json.dumps(differences(env, Recording.from_json(json.loads(line)))), flush=True)
    env.close()


def measure(num_episodes: int, max_turns: int) -> dict[str, Any]:
    """Record here, replay there."""
    recordings = recorded(num_episodes, max_turns)
    lines = "\n".join(json.dumps(one.to_json()) for one in recordings)
    done = subprocess.run(
        [sys.executable, __file__, "--replay"], input=lines, capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    pairs = zip(recordings, found, strict=True)
    return {
        "num_episodes": len(found),
        "num_actions": sum(len(one.actions) for one in recordings),
        "num_equal": found.count([]),
        "different": {one.task.id: what for one, what in pairs if what},
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--replay", action="store_true")
    given = parser.parse_args()
    if given.replay:
        replay()
    else:
        load = os.getloadavg()
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        result = {
            "date": datetime.date.today().isoformat(),
            "commit": commit.stdout.strip(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
            "load_average_before": [round(value, 2) for value in load],
            "results": measure(given.episodes, given.turns),
        }
        text = json.dumps(result, indent=1)
        print(text)
        if given.out:
            given.out.write_text(text + "\n", encoding="utf-8")
    close_browsers()


if __name__ == "__main__":
    main()
