"""MT-GRPO compared with its authors' trainer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from credit_inputs import TORCH, by_trajectory, double_precision, random_table, to_tokens
from released import Case, Release, gap, load

from agentgym.credit.estimators.multi_reward import mt_grpo
from agentgym.credit.parts import role_reward
from agentgym.credit.statistics import ends_of_trajectories, per_trajectory, trajectories
from agentgym.types import RewardRole

AUTHORS = Release("SiliangZeng/Multi-Turn-RL-Agent", "7dbdd08")
FILE = "verifiers/trainers/mt_grpo_env_trainer.py"
NORMALISE = "verifiers/trainers/grpo_env_trainer.py"


@cache
def methods(folder: Path) -> dict[str, Any]:
    name = "GRPOEnvTrainer._compute_normalized_advantages"
    scope = load(folder / NORMALISE, name, namespace={"torch": TORCH})
    return load(folder / FILE, "MTGRPOEnvTrainer._assign_advantages", namespace=scope)


def beside(turn_credit: str, max_turns: int) -> Any:
    """Return the comparison on episodes of up to so many turns."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        size = int(rng.integers(2, 7))
        table = random_table(rng, size=size, max_turns=max_turns)
        is_last = ends_of_trajectories(table)
        table = table.with_parts(
            used=("process", np.where(is_last, 0.0, table.reward)),
            right=("outcome", np.where(is_last, table.reward, 0)),
        )
        view, layout = trajectories(table), by_trajectory(table)
        outcome = per_trajectory(table, role_reward(table, RewardRole.OUTCOME))
        of_turns = per_trajectory(table, role_reward(table, RewardRole.PROCESS))
        process = SimpleNamespace(process_index=0, device="cpu")
        own = SimpleNamespace(num_generations=size, accelerator=process, turn_advantage_coef=0.7)
        released = methods(folder)
        with double_precision():
            turn, result, combined = (
                released["_compute_normalized_advantages"](own, torch.as_tensor(rewards), len(view.first))[2]
                for rewards in (of_turns, outcome, of_turns + outcome)
            )
            first_results = np.where(view.num_turns > 1, 1, -1).tolist()
            theirs = released["_assign_advantages"](own, layout.mask, turn, result, combined, first_results)
        ours = mt_grpo(table, turn_weight=0.7, turn_credit=turn_credit).advantage
        return gap(to_tokens(table, ours), layout.read(theirs))

    return largest_gap


MORE = (
    "The published form has two turns. The release credits the first turn of a longer episode with the reward of "
    "all of them; ours credits each turn with its own, and `turn_credit: first` is the release."
)
CASES = tuple(
    Case(component="mt_grpo", variant=variant, release=AUTHORS, file=FILE, largest_gap=compare, explained=explained)
    for variant, compare, explained in (
        ("two turns", beside("each", 2), ""),
        ("several turns, turn_credit first", beside("first", 4), ""),
        ("several turns", beside("each", 4), MORE),
    )
)
