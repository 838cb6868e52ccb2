"""Lp-Reg compared with its authors' loss: its filter of noise, and the tokens and the divergence that it adds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from released import Case, Release, gap, load
from token_rows import VERL_FUNCTIONS, draw_rows, with_gradients
from torch import Tensor

from agentgym.trainers.losses.policy import ppo_clip
from agentgym.trainers.losses.published.lp_reg import LpRegOptions, lp_reg, prepare_lp_reg, without_noise

RELEASE = Release("CarlanLark/Lp-Reg-dev", "33b27e2")
LOSS = "verl/trainer/ppo/core_algos.py"
FILTER = "verl/workers/actor/dp_actor.py"


def filter_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare the log-probabilities without noise, also of tokens that are noise."""
    options = LpRegOptions(noise=float(rng.choice([0.02, 0.1, 0.3])), relative=bool(rng.integers(2)))
    logits = torch.tensor(rng.normal(0, 2, (int(rng.integers(1, 9)), 12)))
    logits[0, 3] = logits[0].max()  # a tie for the likeliest
    token = torch.tensor(rng.integers(0, 12, len(logits)))
    scope = load(folder / FILTER, "DataParallelPPOActor.apply_min_p", namespace={"torch": torch, "print": str})
    kept = scope["apply_min_p"](None, logits, options.noise, False, "minp" if options.relative else "fixed")
    released = kept.log_softmax(-1).gather(-1, token[:, None])[:, 0]
    ours = without_noise(logits.log_softmax(-1), token, options)
    is_noise = released < -1000  # both are far below every log-probability of the policy, by different amounts
    if is_noise.all() or (kept == kept[:, :1]).all(-1).any():  # all tokens are noise: the release's are equally likely
        return 0.0
    return max(gap(ours[~is_noise].numpy(), released[~is_noise].numpy()), float((ours[is_noise] > -1000).sum()))


def loss_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare the loss and its gradient where two tokens at least are chosen; the release takes no single one."""
    rows = draw_rows(rng)
    negative = int(((rows.advantage < 0) & rows.mask).sum())
    share = min(1.0, max(0.5, 2 / max(1, negative)))
    target = rows.logprob + torch.tensor(rng.normal(0, 1, rows.mask.shape))
    names = ("agg_loss", "kl_penalty", "compute_policy_loss_lp_reg")
    scope = load(folder / LOSS, *names, namespace={"torch": torch, "verl_F": VERL_FUNCTIONS, "print": str})

    def released(logprob: Tensor, entropy: Tensor) -> Tensor:
        loss: Tensor = scope["compute_policy_loss_lp_reg"](
            *(rows.old, logprob, target, target, rows.advantage, rows.mask.double()),
            cliprange_low=1.0,
            cliprange_high=1e6,  # so that no token of ours is clipped, as none of the release's chosen ones is
            logp_neg_k_percent=share if negative > 1 else 0.0,
        )[0]
        return loss

    def ours(logprob: Tensor, entropy: Tensor) -> Tensor:
        flat = logprob[rows.mask]
        options = LpRegOptions(share=share)
        advantage = rows.advantage[rows.mask] if negative > 1 else rows.advantage[rows.mask].clamp(min=0)
        chosen = prepare_lp_reg(flat, advantage, target[rows.mask], options)["target"]
        ratio = (flat - rows.old[rows.mask]).clamp(-20, 20).exp()
        loss, _ = ppo_clip(ratio, rows.advantage[rows.mask], 0.0, 1e6, None)
        return (loss + lp_reg(flat, chosen)).sum() / (rows.mask.sum() + 1e-8)

    return gap(with_gradients(rows, ours), with_gradients(rows, released))


CASES = (
    Case(component="lp_reg", variant="filter", release=RELEASE, file=FILTER, largest_gap=filter_gap),
    Case(component="lp_reg", variant="loss", release=RELEASE, file=LOSS, largest_gap=loss_gap),
)
