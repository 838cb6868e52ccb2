"""Time that evaluation adds to that of its environment: household episodes by the oracle.

    python benchmarks/evaluation/oracle.py --output benchmarks/evaluation/oracle.json

The same tasks are played twice: by a loop that resets, asks the oracle and steps, and by ``agentgym.evaluate``, which
also seeds, schedules, records and scores. Results are processor seconds of one process; the two alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import agentgym

ENV = "agentgym/Household-v0"


def play_alone(num_episodes: int) -> float:
    """Processor seconds of the environment and its oracle."""
    env = agentgym.make(ENV)
    tasks = env.tasks("test")
    began = time.process_time()
    for number in range(num_episodes):
        env.reset(seed=number, options={"task": tasks[number % len(tasks)], "split": "test"})
        is_over = False
        while not is_over:
            *_, terminated, truncated, _ = env.step(env.unwrapped.oracle())
            is_over = terminated or truncated
    seconds = time.process_time() - began
    env.close()
    return seconds


def evaluate(num_episodes: int) -> float:
    """Processor seconds of the evaluation, records and statistics included."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        agentgym.evaluate(ENV, "oracle", episodes=num_episodes, split="test", run_dir=Path(folder) / "run")
        return time.process_time() - began


def main() -> None:
    """Measure, print, and write the requested files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    evaluate(8)  # warm up: imports, and lists that the first task makes
    pairs = [(play_alone(given.episodes), evaluate(given.episodes)) for _ in range(given.rounds)]
    alone, whole = (statistics.median(times) for times in zip(*pairs, strict=True))
    results = {
        "episodes": given.episodes,
        "environment_s": round(alone, 2),
        "evaluation_s": round(whole, 2),
        "ratio": round(statistics.median(b / a for a, b in pairs), 2),
    }
    text = json.dumps(results, indent=2)
    print(text)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
