"""Steps and resets per second of the shop on one core, and what catalogues cost to make.

    OMP_NUM_THREADS=1 python benchmarks/webshop_speed/bench.py --output benchmarks/webshop_speed/results.json
    ... --num-products 1000 100000      other sizes

Steps go through the public ``step`` with a message of one tool call or one line of text, observation included, the
state key not. In each task a third of the actions are random ones that the page offers, a tenth impossible, the rest
the gold policy's; they are recorded first, so that choosing them is not measured. ``first`` is each episode played
with searches that were not made before, ``again`` with remembered ones, as in groups of episodes of one task.
Medians of the rounds are given, in seconds of the clock and, since others may use the machine, of this process's
processor time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.generator import generated_catalogue
from agentgym.registry import make
from agentgym.types import Message

NUM_ROUNDS = 3
Clock = Callable[[], float]


def recorded(env: WebShopEnv, num_tasks: int) -> list[list[Message]]:
    """Record one episode's actions for each of the first tasks."""
    rng = np.random.default_rng(0)
    episodes = []
    for index in range(num_tasks):
        env.reset(options={"task": index})
        actions: list[Message] = []
        is_over = False
        while not is_over:
            drawn = rng.random()
            action = env.parse_action("click[nothing]") if drawn < 0.1 else env.oracle()
            if 0.1 <= drawn < 0.43:
                possible = env.admissible_actions()
                action = env.parse_action(possible[int(rng.integers(len(possible)))])
            actions.append(action)
            _, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
        episodes.append(actions)
    return episodes


def steps_per_s(env: WebShopEnv, episodes: list[list[Message]], clock: Clock, forget: bool) -> float:
    """Return steps of the recorded episodes per second, without resets; with ``forget``, no search is cached."""
    seconds, num_steps = 0.0, 0
    for index, actions in enumerate(episodes):
        env.reset(options={"task": index})
        if forget:
            env.visit.catalogue.index.search.cache_clear()
        began = clock()
        for action in actions:
            env.step(action)
        seconds += clock() - began
        num_steps += len(actions)
    return num_steps / seconds


def resets_per_s(env: WebShopEnv, num_tasks: int, clock: Clock) -> float:
    """Return resets per second, each to another task."""
    tasks = [env.tasks("train")[index] for index in range(num_tasks)]
    began = clock()
    for task in tasks:
        env.reset(options={"task": task})
    return num_tasks / (clock() - began)


def state_key_us(env: WebShopEnv, episodes: list[list[Message]], clock: Clock) -> float:
    """Return the microseconds of one state key, over the states of some episodes."""
    seconds, num_keys = 0.0, 0
    for index, actions in enumerate(episodes[:50]):
        env.reset(options={"task": index})
        for action in actions:
            env.step(action)
            began = clock()
            for _ in range(10):
                env.state_key()
            seconds += clock() - began
            num_keys += 10
    return 1e6 * seconds / num_keys


def median(measure: Callable[[], float]) -> float:
    """Return the median of the rounds, to three digits."""
    return float(f"{statistics.median(measure() for _ in range(NUM_ROUNDS)):.3g}")


def shop(num_products: int, interface: str, num_tasks: int) -> dict[str, Any]:
    """Measure speeds with one size of catalogue."""
    env = make("agentgym/WebShop-v0", num_products=num_products, interface=interface)
    assert isinstance(env, WebShopEnv)
    episodes = recorded(env, num_tasks)
    measured: dict[str, Any] = {"num_products": num_products, "interface": interface}
    for name, clock in (("wall", time.perf_counter), ("cpu", time.process_time)):
        measured[name] = {
            "steps_per_s_first": median(lambda clock=clock: steps_per_s(env, episodes, clock, True)),
            "steps_per_s_again": median(lambda clock=clock: steps_per_s(env, episodes, clock, False)),
            "resets_per_s": median(lambda clock=clock: resets_per_s(env, num_tasks, clock)),
            "state_key_us": median(lambda clock=clock: state_key_us(env, episodes, clock)),
        }
    measured["mean_turns"] = round(float(np.mean([len(actions) for actions in episodes])), 1)
    return measured


def making(num_products: int) -> dict[str, Any]:
    """Measure time and memory of one catalogue in a separate process."""
    command = [sys.executable, __file__, "--make", str(num_products)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def print_making(num_products: int) -> None:
    """Build one catalogue and print the time and memory it took; run in a separate process."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, began_cpu = time.perf_counter(), time.process_time()
    generated_catalogue(num_products, 0)
    taken = {
        "num_products": num_products,
        "wall_s": round(time.perf_counter() - began, 2),
        "cpu_s": round(time.process_time() - began_cpu, 2),
        "memory_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024),
    }
    print(json.dumps(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the shop.")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--num-products", type=int, nargs="+", default=[1_000])
    parser.add_argument("--tasks", type=int, default=100, help="tasks whose episodes are played")
    parser.add_argument("--make", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        print_making(args.make)
        return
    results: dict[str, Any] = {
        "machine": f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": round(os.getloadavg()[0], 1),  # above 1: other work shared the cores
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "making": [making(num_products) for num_products in args.num_products],
        "shops": [shop(size, interface, args.tasks) for size in args.num_products for interface in ("tools", "text")],
    }
    text = json.dumps(results, indent=2)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


def commit() -> str:
    """Return the commit that is measured."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, check=True, capture_output=True, text=True
    ).stdout.strip()


def cpu_name() -> str:
    """Return the processor's name as Linux reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


if __name__ == "__main__":
    main()
