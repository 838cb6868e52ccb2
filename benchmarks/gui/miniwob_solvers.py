"""Share of episodes in which each scripted policy of MiniWoB++ earns the page's full reward.

OMP_NUM_THREADS=1 python benchmarks/gui/miniwob_solvers.py --seeds 20 --out benchmarks/gui/miniwob-solvers.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.miniwob.solvers import AMBIGUOUS, SOLVERS
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.replay import PATIENT, record, side_by_side
from agentgym.errors import EnvError

ALL_OF_IT = 0.99  # of a reward that is at most 1
MAX_TURNS = 60


def play(env: MiniWoBEnv, task: str) -> tuple[float, int, str]:
    """Play one episode by the scripted policy; return the page's raw reward, the turns and the error."""
    try:
        recording = record(env, task, MiniWoBEnv.oracle, MAX_TURNS)
    except EnvError:
        raise  # an infrastructure failure says nothing about the policy
    except Exception as error:  # the policy's own
        return 0.0, env.turn, f"{type(error).__name__}: {error}"
    raw = env.raw_reward or 0.0
    return raw, len(recording.actions), "" if raw > ALL_OF_IT else f"{env.goal!r}: {recording.actions}"


def measure(names: Sequence[str], num_seeds: int, num_envs: int) -> dict[str, Any]:
    """Run every policy on the seeds from 0; return its successes, turns and errors."""
    jobs = [f"{name}-{seed}" for name in names for seed in range(num_seeds)]
    played = dict(
        zip(
            jobs, side_by_side(lambda: MiniWoBEnv(max_turns=MAX_TURNS, pool=PATIENT), play, jobs, num_envs), strict=True
        )
    )
    tasks = {}
    for name in names:
        mine = {seed: played[f"{name}-{seed}"] for seed in range(num_seeds)}
        tasks[name] = {
            "num_solved": sum(raw > ALL_OF_IT for raw, _, _ in mine.values()),
            "most_turns": max(turns for _, turns, _ in mine.values()),
            "failures": {seed: why for seed, (_, _, why) in mine.items() if why},
        }
    return {
        "num_seeds": num_seeds,
        "num_tasks": len(names),
        "num_proven": sum(task["num_solved"] == num_seeds for task in tasks.values()),
        "may_be_ambiguous": sorted(AMBIGUOUS),
        "tasks": tasks,
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="*", default=list(SOLVERS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--envs", type=int, default=4, help="episodes side by side")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "results": measure(given.tasks, given.seeds, given.envs),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    close_browsers()


if __name__ == "__main__":
    main()
