"""HAPO compared with its authors' loss."""

from __future__ import annotations

from math import ceil, floor
from pathlib import Path

import numpy as np
import torch
from released import Case, Release, gap, load
from token_rows import VERL_FUNCTIONS, draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.published.hapo import HapoOptions

RELEASE = Release("starriver030515/HAPO", "7671dde")
FILE = "verl/trainer/ppo/core_algos.py"


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Draw the pivot and the scales; some entropies are 0 or equal."""
    rows = draw_rows(rng)
    rows.entropy[:, ::4] = float(rng.choice([0.0, 1.0]))
    clip_scale, advantage_scale = rng.choice([(0.0, 1.0), (0.5, 0.0), (1.0, 0.5), (1.0, 1.0)])
    options = HapoOptions(
        pivot=float(rng.choice([0.0, 0.5, 0.8, 1.0])),
        clip_scale=float(clip_scale),
        advantage_scale=float(advantage_scale),
        signed=False,
    )
    names = ("torch_quantile", "compute_entropy_h", "ada_clip", "ada_advantage", "agg_loss", "compute_policy_loss")
    known = {"torch": torch, "verl_F": VERL_FUNCTIONS, "floor": floor, "ceil": ceil}
    scope = load(folder / FILE, *names, namespace=known)

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        loss: Tensor = scope["compute_policy_loss"](
            *(rows.old, logprob, rows.advantage, rows.mask.double()),
            cliprange_low=0.2,
            cliprange_high=0.2,
            clip_ratio_c=10.0,
            entropy_pivot=options.pivot,
            adaptive_clip=True,
            clip_alpha=options.clip_scale,
            adaptive_advantage=True,
            adv_beta=options.advantage_scale,
            entropy=entropy.detach(),
        )[0]
        return loss

    config = LossConfig(kind="hapo", options=options, corrections=(), clip_low=0.2, clip_high=0.2, dual_clip=10.0)
    return gap(ours(rows, config), with_gradients(rows, released))


CASES = (Case(component="hapo", release=RELEASE, file=FILE, largest_gap=largest_gap),)
