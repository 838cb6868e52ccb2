"""DPPO compared with its authors' code, whose log-probabilities of the old policy stand for those of the engine too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from released import Case, Release, gap, load
from token_rows import VERL_FUNCTIONS, ActorConfig, draw_rows, ours, with_gradients
from torch import Tensor

from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.published.dppo import DppoOptions

RELEASE = Release("sail-sg/Stable-RL", "c6af1d1")
FILE = "verl/trainer/ppo/core_algos.py"


def dppo(divergence: str) -> Callable[[Path, np.random.Generator], float]:
    """Return the comparison for one divergence."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw_rows(rng)
        low, high = (float(rng.choice([0.01, 0.05, 0.15, 0.5])) for _ in range(2))
        options = DppoOptions(
            divergence=divergence,  # type: ignore[arg-type]
            low=low,
            high=high,
            cap=float(rng.choice([1.5, 20.0])),
        )
        names = ("agg_loss", "_compute_token_mask_for_policy_loss", "compute_policy_loss_with_mask")
        scope = load(folder / FILE, *names, namespace={"torch": torch, "verl_F": VERL_FUNCTIONS})
        config = ActorConfig(
            clip_ratio=0.2, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=options.cap, global_batch_info={}
        )

        def released(logprob: Tensor, entropy: Tensor) -> Tensor:
            loss: Tensor = scope["compute_policy_loss_with_mask"](
                *(rows.old, logprob, rows.advantage, rows.mask.double(), "token-mean", config),
                rollout_log_prob=rows.old,
                topk_kl=rows.old,
                topk_tv=rows.old,
                entropy=entropy.detach(),
                loss_mode=f"dppo_binary_{divergence}_recompute",
            )[0]
            return loss

        made = ours(rows, LossConfig(kind="dppo", options=options, corrections=()))
        return gap(made, with_gradients(rows, released))

    return largest_gap


CASES = tuple(
    Case(component="dppo", variant=name, release=RELEASE, file=FILE, largest_gap=dppo(name)) for name in ("tv", "kl")
)
