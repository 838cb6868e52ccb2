"""AEPO's clip compared with its authors' code.

The authors' repository has moved. A fork keeps their history, and the commit is theirs ("upload AEPO").
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from released import Case, Release, gap, load
from token_rows import VERL_FUNCTIONS, draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.trainers.losses.config import LossConfig

RELEASE = Release("multi-agent-deep-research/ARPO", "81e3a5d")
FILE = "AEPO/verl_aepo_entropy/verl/trainer/ppo/core_algos.py"


def aepo_clip(folder: Path, rng: np.random.Generator) -> float:
    """Compare the clip alone; the entropy-balanced advantage is a modulator of ours."""
    rows = draw_rows(rng)
    names = ("agg_loss", "compute_policy_loss_entropy_balanced_clipping")
    scope = load(folder / FILE, *names, namespace={"torch": torch, "verl_F": VERL_FUNCTIONS})

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        return scope["compute_policy_loss_entropy_balanced_clipping"](
            rows.old, logprob, entropy, rows.advantage, rows.mask.long(), True, False, cliprange=0.2
        )[0]

    return gap(ours(rows, LossConfig(kind="aepo_clip", corrections=())), with_gradients(rows, released))


CASES = (Case(component="aepo_clip", release=RELEASE, file=FILE, largest_gap=aepo_clip),)
