"""Baselines and losses for off-policy data compared with Trinity-RFT, R3L's copy of it, and RL-PLUS."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from io import StringIO
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
TRINITY = Release("modelscope/Trinity-RFT", "d4baca6")
ASYMRE = "trinity/algorithm/advantage_fn/asymre_advantage.py"
OPMD = "trinity/algorithm/advantage_fn/opmd_advantage.py"
RL_PLUS_AUTHORS = Release("YihongDong/RL-PLUS", "eb4aa4d")
RL_PLUS = "rl_plus/verl/verl/recipe/rlplus_core_alg.py"
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
        assert loss_agg_mode == "token-mean"
        return (values * mask).sum() / mask.sum()

    scope = load(folder / LOSS, "OPMDPolicyLossFn.__call__", namespace={"masked_loss": masked_loss})
    own = SimpleNamespace(tau=tau, loss_agg_mode="token-mean")

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        made: Tensor = scope["__call__"](own, logprob, rows.mask, rows.advantage)[0]
        return made

    config = LossConfig(kind="opmd", corrections=(), options=OpmdOptions(tau=tau))
    return gap(ours(rows, config), with_gradients(rows, released))


@cache
def rl_plus_of(folder: Path) -> Any:
    functions = SimpleNamespace(masked_mean=lambda values, mask: (values * mask).sum() / mask.sum().clamp(min=1e-9))
    loaded = load(folder / RL_PLUS, "compute_token_on_off_policy_loss", namespace={"torch": torch, "verl_F": functions})
    return loaded["compute_token_on_off_policy_loss"]


def rl_plus(remove_clip: bool) -> Callable[[Path, np.random.Generator], float]:
    """Compare the loss and its gradient; some rows are demonstrations, in some draws all or none."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw_rows(rng)
        shown = torch.tensor(rng.random(len(rows.mask)) < rng.choice([0.0, 0.5, 1.0], p=[0.1, 0.8, 0.1]))
        rows = replace(rows, demonstrated=shown[:, None].expand_as(rows.mask), old=rows.old.clamp(max=0.0))
        assert rows.demonstrated is not None
        prefix = rows.demonstrated

        def released(logprob: Tensor, entropy: Tensor) -> Tensor:
            made: Tensor = rl_plus_of(folder)(
                rows.old,
                logprob,
                rows.advantage,
                rows.mask.double(),
                0.2,
                1.28,
                prefix,
                off_policy_strategy="RL-PLUS",
                loss_remove_clip=remove_clip,
            )["pg_loss"]
            return made

        bounds = {"clip_low": 1.0, "clip_high": 1e9} if remove_clip else {"clip_low": 0.2, "clip_high": 0.28}
        config = LossConfig(kind="rl_plus", corrections=(), **bounds)
        with redirect_stdout(StringIO()):  # the release prints its bound
            return gap(ours(rows, config), with_gradients(rows, released))

    return largest_gap


BASELINES: tuple[tuple[str, str, str, Any], ...] = (
    ("asymre", "", ASYMRE, baseline(asymre, ASYMRE, "ASYMREGroupAdvantage", baseline_shift=-0.1)),
    (
        "opmd",
        "baseline, logavgexp",
        OPMD,
        baseline(lambda table: opmd(table, tau=0.5), OPMD, "OPMDGroupAdvantage", opmd_baseline="logavgexp", tau=0.5),
    ),
    (
        "opmd",
        "baseline, mean",
        OPMD,
        baseline(lambda table: opmd(table, baseline="mean"), OPMD, "OPMDGroupAdvantage", opmd_baseline="mean", tau=1.0),
    ),
)
CASES = (
    *(
        Case(component=component, variant=variant, release=release, file=file, largest_gap=largest_gap)
        for release in (AUTHORS, TRINITY)
        for component, variant, file, largest_gap in BASELINES
    ),
    Case(component="opmd", variant="loss", release=AUTHORS, file=LOSS, largest_gap=loss),
    Case(component="rl_plus", variant="clipped", release=RL_PLUS_AUTHORS, file=RL_PLUS, largest_gap=rl_plus(False)),
    Case(component="rl_plus", variant="as trained", release=RL_PLUS_AUTHORS, file=RL_PLUS, largest_gap=rl_plus(True)),
)
