"""BAPO compared with its authors' recipe."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from released import Case, Release, gap, load
from token_rows import VERL_FUNCTIONS, ActorConfig, draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import BapoOptions

RELEASE = Release("WooooDyy/BAPO", "7287044")
FILE = "recipe/bapo/policy_loss.py"
AGGREGATION_FILE = "verl/trainer/ppo/core_algos.py"


def bapo(folder: Path, rng: np.random.Generator) -> float:
    """Draw the search's bounds and steps too, so that it ends at the target, at a bound, or at once."""
    rows = draw_rows(rng)
    options = BapoOptions(
        low=float(rng.choice([0.3, 0.6, 0.7])),
        low_max=float(rng.choice([0.7, 0.8, 1.0])),
        high=float(rng.choice([1.0, 1.2, 1.28])),
        high_max=float(rng.choice([1.28, 2.0, 3.0])),
        step=float(rng.choice([0.03, 0.05, 0.25])),
        target=float(rng.choice([0.5, 1.0, 2.0, 8.0])),
    )
    settings = SimpleNamespace(
        ratio_lower_start=options.low,
        ratio_lower_max=options.low_max,
        ratio_lower_step=options.step,
        ratio_upper_start=options.high,
        ratio_upper_max=options.high_max,
        ratio_upper_step=options.step,
        adv_ratio_target=options.target,
        eps=1e-8,
    )
    scope = load(folder / AGGREGATION_FILE, "agg_loss", namespace={"torch": torch, "verl_F": VERL_FUNCTIONS})
    scope |= load(
        folder / FILE,
        "_compute_effective_advantage",
        "_append_metric",
        "compute_policy_loss_bapo",
        namespace={**scope},
    )

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        config = ActorConfig(policy_loss=settings)
        return scope["compute_policy_loss_bapo"](
            rows.old, logprob, rows.advantage, rows.mask.long(), "token-mean", config
        )[0]

    config = LossConfig(kind="bapo", options=options, corrections=())
    return gap(ours(rows, config), with_gradients(rows, released))


CASES = (Case(component="bapo", release=RELEASE, file=FILE, largest_gap=bapo),)
