"""W-REINFORCE, NSR and PSR compared with their authors' advantages, on outcomes 0 and 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from credit_inputs import by_trajectory, on_last_tokens, random_table, with_outcomes_only
from released import Case, Release, gap, load

from agentgym.credit.estimators.w_reinforce import WReinforceOptions, w_reinforce
from agentgym.credit.parts import on_last_turn
from agentgym.credit.statistics import token_rows, trajectories

RELEASE = Release("TianHongZXY/RLVR-Decomposed", "a5d4e7c")
FILE = "verl/trainer/ppo/core_algos.py"


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare all tokens; the release's running return needs answers without gaps."""
    table = with_outcomes_only(random_table(rng))
    won = rng.integers(0, 2, len(trajectories(table).first)).astype(np.float64)
    table = table.with_columns(reward=on_last_turn(table, won))
    layout = by_trajectory(table, gap=0)
    variant = str(rng.choice(["positive", "negative", "weighted"]))
    weight = float(rng.choice([0.0, 0.1, 0.7]))
    options = {
        "positive": WReinforceOptions(positive_weight=1.0, negative_weight=0.0),
        "negative": WReinforceOptions(positive_weight=0.0),
        "weighted": WReinforceOptions(positive_weight=weight),
    }[variant]
    name = "compute_psr_nsr_outcome_advantage"
    scope = load(folder / FILE, name, namespace={"torch": torch})
    rewards = layout.spread(on_last_tokens(table, table.reward))
    released, _ = scope[name](rewards, rewards, layout.mask, 1.0, variant, weight)
    return gap(w_reinforce(table, options).advantage[token_rows(table)], layout.read(released))


CASES = (Case(component="w_reinforce", release=RELEASE, file=FILE, largest_gap=largest_gap),)
