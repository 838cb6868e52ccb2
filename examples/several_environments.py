"""Train one model on two environments in one run.

Run it with `python examples/several_environments.py`. It takes about a minute on one CPU core. It shows how a mixture
is set up; the model is too small to become good at both. `agentgym train mixture` learns in four environments.
"""

from __future__ import annotations

import argparse

import agentgym

ENVS = [
    {"id": "agentgym/GuessNumber-v0", "name": "guess", "kwargs": {"largest": 4}},
    {
        "id": "agentgym/Maze-v0",
        "name": "maze",
        "kwargs": {"size": 2},
        "weight": 2,  # two groups of a step for each of the other environment
        "credit": {"estimator": "gigpo", "gamma": 0.9},  # in place of the run's estimator
    },
]


def main() -> None:
    """Train, and compare success in each environment before and after RL."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--demos", type=int, default=1200)
    given = arguments.parse_args()
    changes = {
        "envs": ENVS,
        "credit.estimator": "grpo",
        "groups_per_step": 12,
        "optimizer.lr": 5e-4,
        "sft.num_demos": given.demos,
        "eval.num_episodes": 64,
        "num_steps": given.steps,
    }
    result = agentgym.train("tiny", changes)
    for env in ENVS:
        before, after = (f"{result.run_dir}/eval/{when}-{env['name']}" for when in ("before", "after"))
        found = agentgym.compare(before, after)
        print(f"{env['name']}: {found.success_a:.3f} -> {found.success_b:.3f} (p = {found.p_value:.2g})")
    print(f"curves of both: {result.run_dir}/report.html")


if __name__ == "__main__":
    main()
