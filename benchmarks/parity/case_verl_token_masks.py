"""Values and gradients of Clip-Cov and KL-Cov compared with verl, of forking tokens with the authors' fork of verl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from released import Case, Release, gap, load
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.layout import PaddedRows
from agentgym.trainers.data.plan import token_weights
from agentgym.trainers.losses.config import Aggregation, LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, UpdateStatistics
from agentgym.trainers.losses.loss import gated_loss, policy_loss
from agentgym.trainers.losses.options import ClipCovOptions, ForkingTokensOptions, KlCovOptions
from agentgym.trainers.losses.token_masks import choose_tokens

VERL = Release("verl-project/verl", "1dda039")
FORKING = Release("Shenzhi-Wang/Beyond-the-80-20-Rule-RLVR", "6f5dda6")
LOSSES, FUNCTIONS = "verl/trainer/ppo/core_algos.py", "verl/utils/torch_functional.py"
AGGREGATIONS: tuple[Aggregation, ...] = (
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm",
)  # fmt: skip
NORM_LENGTH, SEED = 7, 11
UNCLIPPED = {"clip_low": 1.0, "clip_high": 1e6}
Scalar = Callable[[Tensor], Tensor]


def draw(rng: np.random.Generator) -> dict[str, Tensor]:
    """Draw padded rows ``[B, T]`` in float64: gaps in the mask, equal advantages in a row, ratios far from 1."""
    shape = int(rng.integers(1, 5)), int(rng.integers(3, 12))
    mask = rng.random(shape) < 0.8
    mask[0, 0] = True
    logprob = -2 * rng.exponential(1.0, shape)
    advantage = rng.normal(0, 1.5, (shape[0], 1)) if rng.random() < 0.5 else rng.normal(0, 1.5, shape)
    drawn = {
        "advantage": np.broadcast_to(advantage, shape).copy(),
        "logprob": logprob,
        "old": logprob + rng.normal(0, 0.4, shape) * rng.choice([0.0, 1.0], shape),
        "entropy": rng.exponential(0.8, shape),
        "rollout_weight": rng.uniform(0.2, 1.8, shape),
    }
    return {"mask": torch.tensor(mask)} | {name: torch.tensor(value) for name, value in drawn.items()}


def ours(drawn: dict[str, Tensor], config: LossConfig) -> Scalar:
    """Return our loss as a function of the log-probabilities ``[B, T]``."""
    mask = drawn["mask"]
    row, at = mask.nonzero().unbind(1)
    old = drawn["old"][mask]
    batch = Batch(
        layout=PaddedRows(torch.zeros(0, dtype=torch.long), torch.zeros(mask.shape, dtype=torch.long)),
        row=row,
        state=at,
        target=at,
        rows=tuple(range(len(mask))),
        columns={
            "logprob_rollout": old - drawn["rollout_weight"][mask].log(),  # token_tis then weighs by it
            "advantage": drawn["advantage"][mask],
            "loss_weight": torch.tensor(token_weights(row.numpy(), config.mean, NORM_LENGTH), dtype=torch.float64),
            "turn": row,
            "turn_index": torch.zeros_like(row),
            "unit": row,
        },
    )
    of_token = drawn["entropy"][mask]
    logprob = drawn["logprob"][mask]
    frozen = BatchLogprobs(logprob=logprob, logprob_old=old, entropy=of_token)
    before = BatchLogprobs(logprob=logprob, logprob_old=old, entropy=of_token)
    was_gated = gated_loss(before, batch, config, UpdateStatistics())[1]
    (choice,) = choose_tokens([batch], [frozen], [was_gated], [batch["loss_weight"]], config, SEED)

    def loss(logprob: Tensor) -> Tensor:
        scores = replace(before, logprob=logprob[mask], choice=choice)
        return policy_loss(scores, batch, config).loss

    return loss


def value_and_gradient(drawn: dict[str, Tensor], loss: Scalar) -> np.ndarray:
    """Return a loss and its gradient with respect to the log-probabilities."""
    logprob = drawn["logprob"].clone().requires_grad_()
    value = loss(logprob)
    gradient = torch.autograd.grad(value + 0 * logprob.sum(), logprob)[0]
    return torch.cat([value.detach().reshape(1), gradient.reshape(-1)]).numpy()


class SeededTorch:
    """Torch, with the random order that our Clip-Cov takes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def randperm(count: int) -> Tensor:
        """Return the permutation of our seed."""
        return torch.randperm(count, generator=torch.Generator().manual_seed(SEED))


def released(folder: Path, *names: str) -> dict[str, Any]:
    """Return losses of a verl, over its own masked means and aggregations."""
    means = load(folder / FUNCTIONS, "masked_sum", "masked_mean", namespace={"torch": torch})
    functions = SimpleNamespace(masked_sum=means["masked_sum"], masked_mean=means["masked_mean"])
    scope = {"torch": SeededTorch(), "verl_F": functions, "AlgoConfig": type(None)}
    return load(folder / LOSSES, "agg_loss", *names, namespace=scope)


def actor(aggregation: str, **policy_loss: Any) -> Any:
    """Return the part of verl's actor configuration that the losses read."""
    scale = {"loss_scale_factor": NORM_LENGTH} if aggregation == "seq-mean-token-sum-norm" else {}
    settings = SimpleNamespace(
        clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, global_batch_info=scale,
        policy_loss=SimpleNamespace(**policy_loss),
    )  # fmt: skip
    settings.get = lambda name, default: getattr(settings, name, default)
    return settings


def _covariance_gap(folder: Path, rng: np.random.Generator, name: str, options: Any, **settings: Any) -> float:
    drawn, aggregation = draw(rng), str(rng.choice(AGGREGATIONS))
    config = LossConfig(
        num_epochs=2,
        aggregation=aggregation,  # type: ignore[arg-type]
        norm_length=NORM_LENGTH,
        token_masks=(options,),
        **(UNCLIPPED if name == "kl_cov" else {}),
    )
    loss = released(folder, f"compute_policy_loss_{name}")[f"compute_policy_loss_{name}"]

    def theirs(logprob: Tensor) -> Tensor:
        value: Tensor = loss(
            drawn["old"],
            logprob,
            drawn["advantage"],
            drawn["mask"].to(torch.float64),
            aggregation,
            actor(aggregation, **settings),
            drawn["rollout_weight"],
        )[0]
        return value

    return gap(value_and_gradient(drawn, ours(drawn, config)), value_and_gradient(drawn, theirs))


def clip_cov(folder: Path, rng: np.random.Generator) -> float:
    """Draw shares and bands under which none, one or many tokens are left out."""
    share, low, high = (
        float(rng.choice([0.0002, 0.1, 0.5])),
        float(rng.choice([0.2, 1.0])),
        float(rng.choice([2.0, 5.0])),
    )
    options = ClipCovOptions(share=share, low=low, high=high)
    settings = {"clip_cov_ratio": share, "clip_cov_lb": low, "clip_cov_ub": high}
    return _covariance_gap(folder, rng, "clip_cov", options, **settings)


def kl_cov(folder: Path, rng: np.random.Generator) -> float:
    """Draw shares and coefficients. Our clip is opened, since the release has none here."""
    share, coef = float(rng.choice([0.0002, 0.1, 0.5])), float(rng.choice([0.1, 1.0]))
    return _covariance_gap(
        folder, rng, "kl_cov", KlCovOptions(share=share, coef=coef), kl_cov_ratio=share, ppo_kl_coef=coef
    )


def forking_tokens(folder: Path, rng: np.random.Generator) -> float:
    """Compare under the release's own aggregation; its others are NaN for a row without a forking token."""
    drawn, aggregation = draw(rng), "token-mean"
    share = float(rng.choice([0.05, 0.2, 0.5, 1.0]))
    config = LossConfig(
        dual_clip=3.0,
        token_masks=(ForkingTokensOptions(share=share),),
    )
    scope = released(folder, "get_global_entropy_top_mask", "compute_policy_loss_vanilla")
    top = scope["get_global_entropy_top_mask"](drawn["entropy"], drawn["mask"], share)

    def theirs(logprob: Tensor) -> Tensor:
        value: Tensor = scope["compute_policy_loss_vanilla"](
            drawn["old"], logprob, drawn["advantage"], drawn["mask"].to(torch.float64), aggregation,
            actor(aggregation), drawn["rollout_weight"], top,
        )[0]  # fmt: skip
        return value

    return gap(value_and_gradient(drawn, ours(drawn, config)), value_and_gradient(drawn, theirs))


CASES = [
    Case(component="clip_cov", release=VERL, file=LOSSES, largest_gap=clip_cov),
    Case(component="kl_cov", release=VERL, file=LOSSES, largest_gap=kl_cov),
    Case(component="forking_tokens", release=FORKING, file=LOSSES, largest_gap=forking_tokens),
]
