"""Steps and resets per second of the household, and of ALFWorld's engine where it is installed, on one core.

    OMP_NUM_THREADS=1 python benchmarks/household_speed/bench.py --output benchmarks/household_speed/results.json
    ... --alfworld-data FOLDER      the same for the real engine, in a Python that has the extra alfworld

Steps go through the public ``step`` with a message of one tool call, observation included, the state key not. The
script is mixed: in each task a third of the actions are random possible ones, a tenth impossible, the rest the gold
policy's. Actions are recorded first, so that choosing them is not measured; medians of the rounds are given.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.env.env import Env
from agentgym.registry import make
from agentgym.types import Message, ToolCall

NUM_GOLD_TASKS = 1_000
IMPOSSIBLE = Message("assistant", "", (ToolCall("take", {"object": "mug 9", "receptacle": "bed 9"}),))


def recorded(env: Env, num_tasks: int) -> list[list[Message]]:
    """Record one episode's actions for each of the first tasks."""
    rng = np.random.default_rng(0)
    episodes = []
    for index in range(num_tasks):
        env.reset(options={"task": index})
        actions: list[Message] = []
        is_over = False
        while not is_over:
            drawn = rng.random()
            action = IMPOSSIBLE if drawn < 0.1 else env.oracle()
            if 0.1 <= drawn < 0.43:
                possible = env.admissible_actions()
                action = env.parse_action(possible[int(rng.integers(len(possible)))])
            actions.append(action)
            _, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
        episodes.append(actions)
    return episodes


def steps_per_s(env: Env, episodes: list[list[Message]]) -> float:
    """Return steps of the recorded episodes per second, without resets."""
    seconds, num_steps = 0.0, 0
    for index, actions in enumerate(episodes):
        env.reset(options={"task": index})
        began = time.perf_counter()
        for action in actions:
            env.step(action)
        seconds += time.perf_counter() - began
        num_steps += len(actions)
    return num_steps / seconds


def resets_per_s(env: Env, split: str, num_tasks: int) -> float:
    """Return resets per second, each to another task."""
    tasks = [env.tasks(split)[index] for index in range(num_tasks)]
    began = time.perf_counter()
    for task in tasks:
        env.reset(options={"task": task})
    return num_tasks / (time.perf_counter() - began)


def state_key_us(env: Env, episodes: list[list[Message]]) -> float:
    """Return the microseconds of one state key, over the states of some episodes."""
    seconds, num_keys = 0.0, 0
    for index, actions in enumerate(episodes[:50]):
        env.reset(options={"task": index})
        for action in actions:
            env.step(action)
            began = time.perf_counter()
            for _ in range(10):
                env.state_key()
            seconds += time.perf_counter() - began
            num_keys += 10
    return 1e6 * seconds / num_keys


def household(num_tasks: int, num_rounds: int, **knobs: Any) -> dict[str, Any]:
    env = make("agentgym/Household-v0", **knobs)
    episodes = recorded(env, num_tasks)
    num_resets = min(1_000, 10 * num_tasks)

    def median(measure: Callable[[], float]) -> float:
        return float(f"{statistics.median(measure() for _ in range(num_rounds)):.3g}")

    return {
        "knobs": knobs,
        "steps_per_s": median(lambda: steps_per_s(env, episodes)),
        "resets_per_s_train": median(lambda: resets_per_s(env, "train", num_resets)),
        "resets_per_s_test": median(lambda: resets_per_s(env, "test", num_resets)),
        "state_key_us": median(lambda: state_key_us(env, episodes)),
        "mean_turns": round(float(np.mean([len(actions) for actions in episodes])), 1),
    }


def gold_lengths(num_tasks: int) -> dict[str, Any]:
    """Return the turns of the gold policy on the first test tasks; it must win each."""
    env = make("agentgym/Household-v0")
    lengths = []
    for task in env.tasks("test")[:num_tasks]:
        env.reset(options={"task": task})
        is_over = False
        while not is_over:
            _, _, terminated, truncated, info = env.step(env.oracle())
            is_over = terminated or truncated
        assert info["success"], task
        lengths.append(env.turn)
    quantiles = {f"p{q}": int(np.percentile(lengths, q)) for q in (5, 50, 95)}
    return {"mean": round(float(np.mean(lengths)), 2), "min": min(lengths), **quantiles, "max": max(lengths)}


def alfworld(data_dir: Path) -> dict[str, Any]:
    """Measure the real engine: load each game once, begin it again, and play it by its walkthrough or planner."""
    env = make("agentgym/ALFWorld-v0", data_dir=data_dir, max_turns=200, interface="text")
    loads: list[float] = []
    restarts: list[float] = []
    steps: list[float] = []
    for task in env.tasks("train"):
        for seconds in (loads, restarts):
            began = time.perf_counter()
            env.reset(options={"task": task})
            seconds.append(time.perf_counter() - began)
        is_over = False
        while not is_over:
            action = env.oracle()
            began = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            steps.append(time.perf_counter() - began)
            is_over = terminated or truncated
    env.close()
    return {
        "num_games": len(loads),
        "load_s": round(statistics.median(loads), 2),
        "restart_s": round(statistics.median(restarts), 3),
        "step_s": round(statistics.median(steps), 3),
        "steps_per_s": round(len(steps) / sum(steps), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the household.")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--alfworld-data", type=Path)
    parser.add_argument("--tasks", type=int, default=400, help="tasks whose episodes are played")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    results: dict[str, Any] = json.loads(args.output.read_text()) if args.output and args.output.is_file() else {}
    results["machine"] = f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    results["load_average"] = round(os.getloadavg()[0], 1)  # above 1: other work shared the cores
    results["date"] = datetime.date.today().isoformat()
    if args.alfworld_data:
        results["alfworld"] = alfworld(args.alfworld_data)
    else:
        measured = partial(household, args.tasks, args.rounds)
        results["household"] = measured()
        results["household_large"] = measured(num_receptacles=30, num_objects=60, max_turns=80)
        results["household_text"] = measured(interface="text")
        results["gold_lengths_test"] = gold_lengths(min(NUM_GOLD_TASKS, 10 * args.tasks))
    text = json.dumps(results, indent=2)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


def cpu_name() -> str:
    """Return the processor's name as Linux reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


if __name__ == "__main__":
    main()
