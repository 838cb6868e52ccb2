"""DPH-RL compared with its authors' divergences on stored samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from released import Case, Release, gap, load
from torch import Tensor

from agentgym.trainers.losses.published.dph import DphOptions, dph

RELEASE = Release("seamoke/DPH-RL", "139a9b2")
FILE = "verl/trainer/ppo/core_algos.py"


def divergence(kind: str) -> Callable[[Path, np.random.Generator], float]:
    """Return the comparison of one divergence."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        """Compare values and gradients; log-ratios beyond 20 are limited here, and in the release for the KL alone."""
        start = torch.tensor(-rng.exponential(1.0, 20))
        leaf = (start + torch.tensor(rng.normal(0, rng.choice([0.1, 2.0]), 20))).requires_grad_()
        one = torch.ones(20, dtype=torch.long)
        scope = load(folder / FILE, "js_low_var", "kl_penalty", namespace={"torch": torch})
        options = DphOptions(divergence=kind)  # type: ignore[arg-type]
        if kind == "js":
            released: Tensor = scope["js_low_var"](logprob=leaf, ref_logprob=start)
        else:
            released = scope["kl_penalty"](logprob=start, ref_logprob=leaf, kl_penalty="low_var_kl")
        made = [dph(leaf, start, one, one - 1, options), released]
        gradients = [torch.autograd.grad(value.sum(), leaf)[0] for value in made]
        return max(gap(*(value.detach().numpy() for value in made)), gap(*(value.numpy() for value in gradients)))

    return largest_gap


CASES = tuple(
    Case(component="dph", variant=kind, release=RELEASE, file=FILE, largest_gap=divergence(kind))
    for kind in ("forward_kl", "js")
)
