"""Milliseconds of every estimator over a batch of 1,024 trajectories of 30 turns, and how time grows with turns.

    OMP_NUM_THREADS=1 PYTHONPATH=. python benchmarks/credit/speed.py --output benchmarks/credit/speed.json

Numbers are best and median of the rounds, on one core; the table is made once and measured separately. States repeat as
in a small world: 40 states per group of 8.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.credit.component import ESTIMATORS
from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.estimators.gigpo import gigpo
from agentgym.credit.estimators.hgpo import hgpo
from agentgym.credit.modulators.salt import SaltOptions
from agentgym.credit.selections.filters import VoidTurnsOptions
from agentgym.credit.shapers.gating import GraOptions
from agentgym.credit.shapers.information_gain import InformationGainOptions
from agentgym.credit.shapers.tool_use import OtcOptions
from agentgym.credit.table import TurnTable

GROUP_SIZE = 8
NUM_STATES = 40


def batch_lists(num_turns: int, num_trajectories: int) -> dict[str, Any]:
    """Rewards, states and groups as lists, from a seed."""
    rng = np.random.default_rng(0)
    states = rng.integers(NUM_STATES, size=(num_trajectories, num_turns))
    states[:, 0] = 0
    rewards = np.zeros((num_trajectories, num_turns))
    rewards[:, -1] = rng.integers(2, size=num_trajectories)
    return {
        "rewards": rewards.tolist(),
        "states": [[f"state {s}" for s in row] for row in states.tolist()],
        "is_valid": (rng.random((num_trajectories, num_turns)) > 0.1).tolist(),
        "group_of_trajectory": (np.arange(num_trajectories) // GROUP_SIZE).tolist(),
    }


def full_table(num_turns: int, num_trajectories: int) -> TurnTable:
    """A table with every column that estimators read."""
    table = TurnTable.from_lists(**batch_lists(num_turns, num_trajectories))
    rng = np.random.default_rng(1)
    num_tokens = rng.integers(5, 20, size=len(table))
    logprobs = [np.cumsum(rng.normal(size=(num_turns, 1)), axis=0) for _ in range(num_trajectories)]
    keys = [f"task {index}" for index in range(num_trajectories // GROUP_SIZE)]
    steps = 0.1 * table.is_valid
    return table.with_parts(solved=("outcome", table.reward), valid=("process", steps)).with_columns(
        num_tokens=num_tokens,
        token_value=rng.random(int(num_tokens.sum())),
        value=rng.random(len(table)),
        q_value=rng.random(len(table)),
        role=np.arange(len(table)) % 2,
        invocation=np.arange(len(table)) % 2 - 1,
        is_truncated=np.zeros(len(table), dtype=bool),
        is_void=np.zeros(len(table), dtype=bool),
        is_patched=rng.random(len(table)) < 0.1,
        action=rng.integers(30, size=len(table)),
        is_faulty=rng.random(len(table)) < 0.1,
        num_calls=np.ones(len(table), dtype=np.int64),
        answer=rng.integers(3, size=len(table)),
        segment=np.tile(np.arange(num_turns) // 10, num_trajectories),
        group_keys=keys,
        answer_logprobs=logprobs,
    )


def milliseconds(function: Callable[[], Any], num_rounds: int) -> dict[str, float]:
    """Best and median time of a call."""
    times = []
    for _ in range(num_rounds):
        began = time.perf_counter()
        function()
        times.append(1000 * (time.perf_counter() - began))
    return {"best_ms": round(min(times), 2), "median_ms": round(statistics.median(times), 2)}


def estimator_times(table: TurnTable, num_rounds: int) -> dict[str, dict[str, float]]:
    """Each estimator through the pipeline, and two longer compositions."""
    solved = table.with_columns(reward=table.reward - 0.1 * table.is_valid)  # SPO takes success rates
    configs = {
        name: CreditConfig(estimator=name, shapers=(InformationGainOptions(),) if name == "igpo" else ())
        for name in ESTIMATORS
    }
    configs["g_ra + gigpo + void_turns"] = CreditConfig(shapers=(GraOptions(),), selections=(VoidTurnsOptions(),))
    configs["otc + hgpo + salt"] = CreditConfig(estimator="hgpo", shapers=(OtcOptions(),), modulators=(SaltOptions(),))
    return {
        name: milliseconds(lambda t=solved if name == "spo" else table, c=config: credit_turns(t, c), num_rounds)
        for name, config in configs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--trajectories", type=int, default=1024)
    args = parser.parse_args()
    num = args.trajectories
    lists, full = batch_lists(30, num), full_table(30, num)
    results: dict[str, Any] = {
        "what": f"{num} trajectories of 30 turns in groups of {GROUP_SIZE}, one core",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "table_from_lists": milliseconds(lambda: TurnTable.from_lists(**lists), args.rounds),
        "gigpo_alone": milliseconds(lambda: gigpo(full), args.rounds),
        "hgpo_alone": milliseconds(lambda: hgpo(full), args.rounds),
        "through_the_pipeline": estimator_times(full, args.rounds),
        "growth": {},
    }
    for num_turns in (15, 30, 60, 120):
        table = TurnTable.from_lists(**batch_lists(num_turns, num))
        results["growth"][num_turns] = {
            "gigpo": milliseconds(lambda t=table: gigpo(t), args.rounds),
            "hgpo": milliseconds(lambda t=table: hgpo(t), args.rounds),
        }
    text = json.dumps(results, indent=2)
    print(text)
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
