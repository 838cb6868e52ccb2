"""DRPO compared with its authors' loss over whole groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from group_rows import WIDTH, draw_groups
from released import Case, Release, gap, load
from token_rows import VERL_FUNCTIONS
from torch import Tensor

from agentgym.trainers.losses.published.drpo import DrpoOptions, prepare_drpo

DRPO = Release("Optimization-AI/DRPO", "405f702")
VERL_FILE = "verl/verl/trainer/ppo/core_algos.py"


def drpo(folder: Path, rng: np.random.Generator) -> float:
    """Compare gradients, with the padded length as ``max_tokens``."""
    rows = draw_groups(rng)
    options = DrpoOptions(
        temperature=float(rng.choice([0.1, 1.0])),
        max_tokens=WIDTH,
        tau=float(rng.choice([0.5, 10.0])),
        beta=float(rng.choice([0.0, 1000.0])),
        delta=float(rng.choice([1e-4, 0.05])),
        kl=str(rng.choice(["k1", "k3"])),  # type: ignore[arg-type]
    )
    name = "compute_policy_loss_drpo"
    scope = load(folder / VERL_FILE, name, namespace={"torch": torch, "verl_F": VERL_FUNCTIONS})

    def released(logprob: Tensor) -> Tensor:
        loss: Tensor = scope[name](
            *(rows.old, logprob, rows.mask.double(), rows.group, rows.reward, options.delta, options.beta),
            *(options.tau, options.temperature),
            kl_type="kl" if options.kl == "k1" else "low_var_kl",
        )[0]
        return loss

    return gap(prepare_drpo(**rows.columns(), options=options)["slope"], rows.gradient(released)[1:])


CASES = (Case(component="drpo", release=DRPO, file=VERL_FILE, largest_gap=drpo),)
