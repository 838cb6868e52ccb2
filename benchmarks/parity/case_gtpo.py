"""GTPO compared with its authors' conflict tokens and loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from released import Case, Release, gap, load
from torch import Tensor

from agentgym.trainers.losses.published.gtpo import GtpoOptions, gtpo, prepare_gtpo

RELEASE = Release("winstonsmith1897/GTPO", "5d33811")
FILE = "gtpo/gtpo_training.py"
VOCABULARY = 4


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Draw a group of answers of different lengths from few tokens, so that many are in conflict.

    The release takes the right pads for tokens that follow the answer, so a shorter answer's first conflict does not
    run past its end; answers are as long as its width in half of the draws.
    """
    size, width = int(rng.integers(1, 6)), int(rng.integers(1, 7))
    lengths = rng.integers(1, width + 1, size) if rng.integers(2) else np.full(size, width)
    lengths[0] = width
    mask = torch.tensor(np.arange(width) < lengths[:, None])
    ids = torch.tensor(rng.integers(0, VOCABULARY, (size, width)))
    ids[~mask] = VOCABULARY  # the padding token
    advantage = torch.tensor(rng.choice([-1.0, 0.0, 1.0], size))
    logits = torch.tensor(rng.normal(0, 2, (size, width, VOCABULARY + 1)), requires_grad=True)
    options = GtpoOptions()
    known = {"torch": torch, "print": lambda *_: None, "PAD_ID": VOCABULARY, "W_RAW": options.right_weight}
    scope = load(folder / FILE, "build_conflict_mask", "gtpo_compute_loss", namespace=known)
    delta, _, count = scope["build_conflict_mask"](ids, mask.long(), advantage > 0, advantage < 0, VOCABULARY + 1)
    logprob = logits.log_softmax(-1)
    entropy = -(logprob.exp() * logprob).sum(-1).detach()
    mean = (entropy * mask).sum(1) / mask.sum(1)
    shaped = torch.where(mean <= options.most_entropy, advantage - options.entropy_penalty * mean, 0.0)
    released = torch.stack(
        [
            scope["gtpo_compute_loss"](logits[g], logits[g], ids[g], mask[g], delta[g], 0.0, shaped[g], count[g])[0]
            for g in range(size)
        ]
    ).sum()
    row = mask.nonzero()[:, 0]
    flat: Tensor = logprob.gather(-1, ids[..., None])[..., 0][mask]
    made = prepare_gtpo(ids[mask], torch.zeros_like(row), row, advantage[row], entropy[mask], options)
    per_token, _ = gtpo(flat, made["shaped"])
    ours = (per_token / mask.sum(1)[row]).sum()
    gradients = [torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ours, released)]
    return max(gap(ours.detach().numpy(), released.detach().numpy()), gap(*(one.numpy() for one in gradients)))


CASES = (Case(component="gtpo", release=RELEASE, file=FILE, largest_gap=largest_gap),)
