"""SIREN compared with its authors' top-p entropy, and with its squared distance over peaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from released import Case, Release, gap, load
from token_rows import VERL_FUNCTIONS, draw_rows, with_gradients
from torch import Tensor

from agentgym.trainers.losses.published.siren import SirenOptions, prepare_siren, siren, top_p_entropy

RELEASE = Release("Linn3a/siren", "fa59a8d")
FILE = "verl/verl/workers/actor/dp_actor.py"
LOSS = "verl/verl/trainer/ppo/core_algos.py"


def entropy_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare entropies and their gradients, also of distributions of which one token reaches top-p."""
    options = SirenOptions(top_p=float(rng.choice([0.5, 0.8, 0.95])), most_tokens=int(rng.choice([3, 12])))
    logits = torch.tensor(rng.normal(0, rng.choice([0.5, 3.0]), (int(rng.integers(1, 7)), 12)), requires_grad=True)
    scope = load(folder / FILE, "efficient_top_p_sampling", namespace={"torch": torch})
    # its bounds are float32, which searchsorted does not mix with float64
    single = logits.detach().float().requires_grad_()
    released, _ = scope["efficient_top_p_sampling"](single, k=options.most_tokens, p=options.top_p)
    ours = top_p_entropy(logits.log_softmax(-1), options)
    gradients = [torch.autograd.grad(made.sum(), of)[0] for made, of in ((ours, logits), (released, single))]
    return max(
        gap(ours.detach().numpy(), released.detach().numpy()), gap(gradients[0].numpy(), gradients[1].double().numpy())
    )


def distance_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare the squared distance and its gradient with respect to the entropies, from a level of an earlier step."""
    rows = draw_rows(rng)
    if not rows.mask.any(1).all():  # a row without a token has no quantile
        return 0.0
    level, quantile = float(rng.uniform(0, 2)), float(rng.choice([0.5, 0.8]))
    scope = load(folder / FILE, "mask_by_quantile", namespace={"torch": torch})
    scope |= load(folder / LOSS, "agg_loss", namespace={"torch": torch, "verl_F": VERL_FUNCTIONS})
    row = rows.mask.nonzero()[:, 0]

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        kept, mask, _ = scope["mask_by_quantile"](entropy, rows.mask, 1, quantile)
        mask = mask & rows.mask  # its entropies of padding are 0, ours are drawn
        each = (torch.where(mask, kept, 0.0)).sum(1) / mask.sum(1).clamp(min=1)
        change: Tensor = each.mean() - level
        return change.pow(2)

    def ours(logprob: Tensor, entropy: Tensor) -> Tensor:
        flat = entropy[rows.mask]
        made, _ = prepare_siren(flat.detach(), row, {"first": level}, SirenOptions(quantile=quantile))
        return siren(flat, **made).mean()

    return gap(with_gradients(rows, ours), with_gradients(rows, released))


CASES = (
    Case(component="siren", variant="entropy", release=RELEASE, file=FILE, largest_gap=entropy_gap),
    Case(component="siren", variant="distance", release=RELEASE, file=FILE, largest_gap=distance_gap),
)
