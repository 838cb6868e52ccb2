"""STEER compared with its authors' loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from credit_inputs import double_precision
from released import Case, Release, gap, load
from token_rows import VERL_FUNCTIONS, draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.published.steer import SteerOptions

RELEASE = Release("zz-haooo/STEER", "b31df71")
FILE = "verl/trainer/ppo/core_algos.py"


class DoubleTorch:
    """torch whose ``float`` is float64, as the release computes weights in it."""

    float = torch.float64

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Draw the mapping and its bounds; rows have a token at least."""
    rows = draw_rows(rng)
    is_linear = bool(rng.integers(2))
    options = SteerOptions(
        mapping="linear" if is_linear else "exponential",
        least=float(rng.choice([0.5, 0.8, 1.0])),
        most=float(rng.choice([1.0, 1.2])),
    )
    names = ("agg_loss", "compute_token_weights", "compute_policy_loss_with_entropy")
    scope = load(folder / FILE, *names, namespace={"torch": DoubleTorch(), "verl_F": VERL_FUNCTIONS})

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        with double_precision():
            loss: Tensor = scope["compute_policy_loss_with_entropy"](
                *(rows.old, logprob, rows.advantage, rows.mask.double(), entropy.detach()),
                cliprange_low=0.2,
                cliprange_high=0.28,
                token_weight_min=options.least,
                token_weight_max=options.most,
                linear=is_linear,
            )[0]
        return loss

    config = LossConfig(kind="steer", options=options, corrections=(), clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    return gap(ours(rows, config), with_gradients(rows, released))


CASES = (Case(component="steer", release=RELEASE, file=FILE, largest_gap=largest_gap),)
