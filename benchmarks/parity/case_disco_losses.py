"""DisCO compared with its authors' losses over whole groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from group_rows import draw_groups
from released import Case, Release, gap, load
from token_rows import VERL_FUNCTIONS
from torch import Tensor

from agentgym.trainers.losses.published.disco import DiscoOptions, prepare_disco

DISCO = Release("Optimization-AI/DisCO", "bd2b078")
VERL_FILE = "verl/verl/trainer/ppo/core_algos.py"


def disco(name: str, score: str, negatives: str) -> Callable[[Path, np.random.Generator], float]:
    """Return the comparison of gradients for one function of the release, whose value is not the objective's."""

    def largest_gap(folder: Path, rng: np.random.Generator) -> float:
        rows = draw_groups(rng)
        options = DiscoOptions(
            score=score,  # type: ignore[arg-type]
            negatives=negatives,  # type: ignore[arg-type]
            tau=float(rng.choice([0.5, 1.0, 10.0])),
            beta=float(rng.choice([0.0, 10.0, 1000.0])),
            delta=float(rng.choice([1e-4, 0.05])),
            kl=str(rng.choice(["k1", "k3"])),  # type: ignore[arg-type]
        )
        scope = load(folder / VERL_FILE, name, namespace={"torch": torch, "verl_F": VERL_FUNCTIONS})
        further = {"tau": options.tau} if negatives == "softmax" else {}

        def released(logprob: Tensor) -> Tensor:
            loss: Tensor = scope[name](
                *(rows.old, logprob, None, rows.mask.double(), rows.group, rows.reward, options.delta, options.beta),
                **further,
                kl_type="kl" if options.kl == "k1" else "low_var_kl",
            )[0]
            return loss

        return gap(prepare_disco(**rows.columns(), options=options)["slope"], rows.gradient(released)[1:])

    return largest_gap


CASES = (
    *(
        Case(component="disco", variant=told, release=DISCO, file=VERL_FILE, largest_gap=disco(name, score, negatives))
        for told, name, score, negatives in (
            ("logprob, softmax", "compute_policy_loss_disco_logL", "logprob", "softmax"),
            ("ratio, softmax", "compute_policy_loss_disco_Lratio", "ratio", "softmax"),
            ("logprob, mean", "compute_policy_loss_discob_logL", "logprob", "mean"),
            ("ratio, mean", "compute_policy_loss_discob_Lratio", "ratio", "mean"),
        )
    ),
)
