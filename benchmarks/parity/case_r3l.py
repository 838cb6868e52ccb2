"""R3L's amplified advantages compared with its authors' estimators."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from credit_inputs import TORCH, double_precision, random_table, with_outcomes_only
from released import Case, Release, gap, load

from agentgym.credit.estimators.group_relative import dr_grpo
from agentgym.credit.estimators.grpo import grpo
from agentgym.credit.modulators.branches import r3l_pivot
from agentgym.credit.statistics import per_trajectory, trajectories

AUTHORS = Release("shiweijiezero/R3L", "d503f6c")
OPMD = "trinity/algorithm/advantage_fn/opmd_advantage.py"
GRPO = "trinity/algorithm/advantage_fn/grpo_advantage.py"


@cache
def calculate(folder: Path, file: str, owner: str) -> Any:
    return load(folder / file, f"{owner}.calculate_group_advantage", namespace={"torch": TORCH})[
        "calculate_group_advantage"
    ]


def beside(estimate: Any, file: str, owner: str, **settings: Any) -> Any:
    """Return the comparison over one estimator; returns around 1 and above are drawn too."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        table = with_outcomes_only(random_table(rng, smallest=2))
        view = trajectories(table)
        returns = per_trajectory(table, table.reward)
        theirs = np.zeros(len(returns))
        for group in np.unique(view.group):
            members = np.flatnonzero(view.group == group)
            of = [SimpleNamespace(reward=float(returns[at]), action_mask=torch.ones(1).double()) for at in members]
            with double_precision():
                calculate(folder, file, owner)(SimpleNamespace(**settings), "", of)
            theirs[members] = [each.advantages.item() for each in of]
        none = np.zeros(len(table), dtype=np.int64)
        table = table.with_columns(parent=none - 1, branch_turn=none)
        return gap(r3l_pivot(table, estimate(table).advantage).advantage[view.first], theirs)

    return largest_gap


CASES = (
    Case(
        component="r3l_pivot",
        variant="dr_grpo",
        release=AUTHORS,
        file=OPMD,
        largest_gap=beside(dr_grpo, OPMD, "OPMDReweightAdvGroupAdvantage", opmd_baseline="mean", tau=1.0),
    ),
    Case(
        component="r3l_pivot",
        variant="grpo",
        release=AUTHORS,
        file=GRPO,
        largest_gap=beside(grpo, GRPO, "GRPOReweightAdvGroupAdvantage", epsilon=1e-6, std_cal_level="group"),
    ),
)
