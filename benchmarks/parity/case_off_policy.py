"""Baselines and the loss for off-policy data compared with Trinity-RFT's, in the copy that R3L's authors released."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from credit_inputs import TORCH, double_precision, random_table, with_outcomes_only
from released import Case, Release, gap, load
from token_rows import draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.credit.estimators.asymre import asymre
from agentgym.credit.estimators.opmd import opmd
from agentgym.credit.statistics import per_trajectory, trajectories
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import OpmdOptions

AUTHORS = Release("shiweijiezero/R3L", "d503f6c")
ASYMRE = "trinity/algorithm/advantage_fn/asymre_advantage.py"
OPMD = "trinity/algorithm/advantage_fn/opmd_advantage.py"
LOSS = "trinity/algorithm/policy_loss_fn/opmd_policy_loss.py"


@cache
def calculate(folder: Path, file: str, owner: str) -> Any:
    return load(folder / file, f"{owner}.calculate_group_advantage", namespace={"torch": TORCH})[
        "calculate_group_advantage"
    ]


def baseline(estimate: Callable[[TurnTable], TurnAdvantages], file: str, owner: str, **settings: Any) -> Any:
    """Return the comparison over one estimator, in groups of two or more."""

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
        return gap(estimate(table).advantage[view.first], theirs)

    return largest_gap


def loss(folder: Path, rng: np.random.Generator) -> float:
    """Compare the loss and its gradient, averaged over tokens."""
    rows, tau = draw_rows(rng), float(rng.choice([0.0, 0.3, 1.0]))

    def masked_loss(values: Tensor, mask: Tensor, loss_agg_mode: str) -> Tensor:
        return (values * mask).sum() / mask.sum()

    scope = load(folder / LOSS, "OPMDPolicyLossFn.__call__", namespace={"masked_loss": masked_loss})
    own = SimpleNamespace(tau=tau, loss_agg_mode="token-mean")

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        made: Tensor = scope["__call__"](own, logprob, rows.mask, rows.advantage)[0]
        return made

    config = LossConfig(kind="opmd", corrections=(), options=OpmdOptions(tau=tau))
    return gap(ours(rows, config), with_gradients(rows, released))


CASES = (
    Case(
        component="asymre",
        release=AUTHORS,
        file=ASYMRE,
        largest_gap=baseline(asymre, ASYMRE, "ASYMREGroupAdvantage", baseline_shift=-0.1),
    ),
    Case(
        component="opmd",
        variant="baseline, logavgexp",
        release=AUTHORS,
        file=OPMD,
        largest_gap=baseline(
            lambda table: opmd(table, tau=0.5), OPMD, "OPMDGroupAdvantage", opmd_baseline="logavgexp", tau=0.5
        ),
    ),
    Case(
        component="opmd",
        variant="baseline, mean",
        release=AUTHORS,
        file=OPMD,
        largest_gap=baseline(
            lambda table: opmd(table, baseline="mean"), OPMD, "OPMDGroupAdvantage", opmd_baseline="mean", tau=1.0
        ),
    ),
    Case(component="opmd", variant="loss", release=AUTHORS, file=LOSS, largest_gap=loss),
)
