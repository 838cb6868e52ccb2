"""A program of one rank: losses over the whole update, an update in parts, and critics, from one seed.

Each rank has the tokens of every N-th group, and outlines of the others.

``python ranked_parts.py OUT``: the first rank writes, by name, the change of all trained weights and the metrics; for a
critic its values and the change of its weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.estimators.gae import ArcherOptions, TokenGaeOptions
from agentgym.trainers.config.train import CriticConfig
from agentgym.trainers.critics.archer import TwinCritic
from agentgym.trainers.critics.critic import Critic, ValueCritic
from agentgym.trainers.critics.progress import ProgressEstimator
from agentgym.trainers.data.outline import outlined
from agentgym.trainers.data.samples import FilteredGroup
from agentgym.trainers.distributed.ranks import Ranks, join_ranks
from agentgym.trainers.distributed.sharding import shard, whole
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import (
    BapoOptions,
    BatchNormaliseOptions,
    ClipCovOptions,
    EpoOptions,
    ForkingTokensOptions,
    IcepopOptions,
    KlCovOptions,
    M2poOptions,
    SequenceTisOptions,
    VcpoOptions,
)
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.phases.update import update_policy
from testkit.made_groups import two_groups
from testkit.policy_updates import on_policy
from testkit.ranked_update import small_model, spread

OPEN: dict[str, Any] = {"clip_low": 1.0, "clip_high": 1e6}
LOSSES: Mapping[str, dict[str, Any]] = {
    "bapo": {"kind": "bapo", "options": BapoOptions(), "num_updates": 2},
    "m2po": {"corrections": (M2poOptions(),), "num_epochs": 2},
    "vcpo by the logits' gradient": {
        "corrections": (SequenceTisOptions(cap=8), VcpoOptions(baseline="proxy")),
        **OPEN,
    },
    "vcpo by the gradient": {
        "corrections": (SequenceTisOptions(cap=8), VcpoOptions(baseline="gradient")),
        **OPEN,
    },
    "batch_normalise": {"corrections": (SequenceTisOptions(cap=8), BatchNormaliseOptions())},
    "kept denominators": {"corrections": (IcepopOptions(denominator="kept", low=0.9, high=1.1),)},
    "epo": {"regularisers": (EpoOptions(),), "num_updates": 2},
    "forking_tokens": {"token_masks": (ForkingTokensOptions(),)},
    "clip_cov": {"token_masks": (ClipCovOptions(share=0.2, low=-9.0, high=9.0),), "num_updates": 2},
    "kl_cov": {"token_masks": (KlCovOptions(share=0.2),), "num_updates": 2},
}
CRITICS: Mapping[str, tuple[Callable[..., Critic], CreditConfig]] = {
    "values of tokens": (
        partial(ValueCritic, is_per_token=True),
        CreditConfig(estimator="token_gae", options=TokenGaeOptions(lam=1.0, whitened=False)),
    ),
    "archer": (partial(TwinCritic, gamma=0.9), CreditConfig(estimator="archer", options=ArcherOptions())),
    "progress": (ProgressEstimator, CreditConfig(estimator="returns")),
}


def stale_verdicts() -> list[FilteredGroup]:
    """Return groups that the small model sampled before it changed a little; a trajectory has one advantage."""
    return on_policy(perturbed())


def perturbed() -> Any:
    model = small_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.02)
    return model


def updated(ranks: Ranks, settings: Mapping[str, Any]) -> dict[str, Any]:
    model = shard(small_model(), ranks)
    before = [whole(parameter.detach()).clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = LossConfig(tokens_per_microbatch=32, **settings)
    verdicts = spread(stale_verdicts(), ranks)
    how: Any = {"temperature": 0.9, "max_grad_norm": 1e9, "rollouts_are_sharded": ranks.count > 1}
    metrics: dict[str, float] = {}
    for step in range(2):
        metrics = update_policy(model, optimizer, verdicts, loss, seed=step, **how).metrics
    change = [(whole(p.detach()) - old).flatten() for p, old in zip(model.parameters(), before, strict=True)]
    return {"change": torch.cat(change), "metrics": metrics}


def learnt(ranks: Ranks, kind: str, trunk: Any, *, has_lora: bool) -> dict[str, Any]:
    make, credit = CRITICS[kind]
    policy = shard(add_lora(small_model(), LoraSettings(rank=4 if has_lora else 0), 0), ranks)
    critic = make(policy, CriticConfig(trunk=trunk, lr=3e-3, num_updates=2, tokens_per_microbatch=10), seed=0)
    groups = [
        group if at % ranks.count == ranks.rank else outlined(group, with_texts=False)
        for at, group in enumerate(two_groups())
    ]
    metrics: dict[str, float] = {}
    for _ in range(2):
        metrics = critic.learn(groups, credit_groups(groups, credit, columns=critic.columns(groups)))
    columns = critic.columns(groups)
    critic.load_state_dict(critic.state_dict())
    return {"columns": {name: torch.tensor(column) for name, column in columns.items()}, "metrics": metrics}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks()
    found = {name: updated(ranks, settings) for name, settings in LOSSES.items()}
    for kind in CRITICS:
        for trunk in ("copy", "shared"):
            found[f"{kind}, {trunk}"] = learnt(ranks, kind, trunk, has_lora=False)
    found["values of tokens, LoRA"] = learnt(ranks, "values of tokens", "copy", has_lora=True)
    if ranks.is_main:
        torch.save(found, out)
    ranks.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
