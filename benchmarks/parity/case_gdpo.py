"""GDPO compared with its authors' two trainers."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from credit_inputs import (
    TORCH,
    Padded,
    batch_of,
    by_trajectory,
    double_precision,
    on_last_tokens,
    random_table,
    to_tokens,
)  # fmt: skip
from released import Case, Release, gap, load, run_lines

from agentgym.credit.estimators.multi_reward import gdpo
from agentgym.credit.statistics import per_trajectory, trajectories
from agentgym.credit.table import TurnTable

AUTHORS = Release("NVlabs/GDPO", "b080e63")
TRL = "trl-GDPO/trl-0.18.0-gdpo/trl/trainer/grpo_trainer.py"
VERL = "verl-GDPO/verl/trainer/ppo/ray_trainer.py"
ALGORITHMS = "verl-GDPO/verl/trainer/ppo/core_algos.py"
FUNCTIONAL = "verl-GDPO/verl/utils/torch_functional.py"


def two_parts(rng: np.random.Generator, size: int) -> TurnTable:
    """Draw groups of one size whose rewards have two parts that tie in many groups."""
    table = random_table(rng, size=size)
    return table.with_parts(right=("outcome", table.reward), short=("format", rng.integers(0, 2, len(table))))


def of_trajectories(folder: Path, rng: np.random.Generator) -> float:
    """Compare the batch norm over trajectories."""
    size = int(rng.integers(2, 6))
    table = two_parts(rng, size)
    assert table.part_values is not None
    scores = np.stack([per_trajectory(table, part) for part in table.part_values.T], axis=1)
    scores[rng.random(scores.shape) < 0.05] = np.nan
    weights = {"right": 1.0, "short": 0.5}
    own = SimpleNamespace(
        apply_gdpo=True, reward_weights=torch.tensor(list(weights.values())).double(), num_generations=size
    )
    scope = {"self": own, "torch": torch, "rewards_per_func": torch.as_tensor(scores), "device": "cpu"}
    theirs = run_lines(folder / TRL, "## Make sure every reward", "else:", scope | {"print": print})["advantages"]
    view = trajectories(table)
    last = np.full((len(table), 2), 0.0)
    last[view.last] = scores
    table = table.with_parts(right=("outcome", last[:, 0]), short=("format", last[:, 1]))
    return gap(gdpo(table, weights=weights).advantage[view.first], theirs)


@cache
def compute_advantage(folder: Path) -> Any:
    names = ("masked_mean", "masked_var", "masked_whiten")
    scope = load(folder / FUNCTIONAL, *names, namespace={"torch": TORCH})
    grpo = load(folder / ALGORITHMS, "compute_grpo_outcome_advantage", namespace=scope | {"defaultdict": defaultdict})
    scope["core_algos"] = SimpleNamespace(compute_grpo_outcome_advantage=grpo["compute_grpo_outcome_advantage"])
    return load(folder / VERL, "compute_advantage", namespace=scope)["compute_advantage"]


def of_tokens(folder: Path, rng: np.random.Generator) -> float:
    """Compare the whitening over tokens; each trajectory is one response."""
    table = two_parts(rng, int(rng.integers(2, 6)))
    layout: Padded = by_trajectory(table, gap=0)
    assert table.part_values is not None
    right, short = (layout.spread(on_last_tokens(table, part)) for part in table.part_values.T)
    batch = {"token_level_scores_correctness": right, "token_level_scores_format": short}
    batch |= {"responses": layout.mask, "attention_mask": layout.mask}
    data = batch_of(batch, uid=table.group[trajectories(table).first])
    with double_precision():
        theirs = compute_advantage(folder)(data, "gdpo").batch["advantages"]
    return gap(to_tokens(table, gdpo(table, batch_norm="token").advantage), layout.read(theirs))


CASES = (
    Case(component="gdpo", variant="trajectory", release=AUTHORS, file=TRL, largest_gap=of_trajectories),
    Case(component="gdpo", variant="token", release=AUTHORS, file=VERL, largest_gap=of_tokens),
)
