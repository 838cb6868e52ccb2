"""Mixtures of experts: what of them can be trained here, and what is refused."""

from __future__ import annotations

import torch

from agentgym.errors import ConfigError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.build import engine_dtype
from agentgym.trainers.models.precision import is_bfloat16
from agentgym.trainers.types import CausalLM

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in configurations of transformers."""


def num_experts(model: CausalLM) -> int:
    """Return the number of experts in a layer of a model; 0 for a dense one."""
    sizes = model.config.get_text_config()
    found = [getattr(sizes, name, None) for name in _COUNTS]
    return max((count for count in found if isinstance(count, int) and count > 1), default=0)


def check_experts(model: CausalLM, config: TrainConfig, num_ranks: int, device: torch.device) -> None:
    """Check that a mixture of experts is sampled from and trained by the same arithmetic; other models pass.

    A router takes the experts with the largest scores, so rounding sends some tokens to other experts. Where engine and
    trainer round differently, ratios of probabilities are then those of different networks, and training collapses
    (Ma et al., "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers",
    https://arxiv.org/abs/2510.11370).

    Raises:
        ConfigError: they differ, or several ranks would each gather all experts.
    """
    if reason := _refusal(model, _reasons(config, num_ranks, device)):
        raise ConfigError(reason)


def too_many_ranks(model: CausalLM, num_ranks: int) -> str:
    """Return why several ranks cannot train a mixture of experts; empty for one rank, and for a dense model."""
    return _refusal(model, _of_ranks(num_ranks))


def _of_ranks(num_ranks: int) -> list[str]:
    return [f"{num_ranks} ranks, each of which would gather all experts"] if num_ranks > 1 else []


def _reasons(config: TrainConfig, num_ranks: int, device: torch.device) -> list[str]:
    return [
        *_of_ranks(num_ranks),
        *([f"engine.kind={config.engine.kind}"] if config.engine.kind != "torch" else []),
        *(["loss.precision=bfloat16"] if is_bfloat16(config.loss.precision, device) else []),
        *(["engine.dtype=bfloat16"] if engine_dtype(config.engine, device) == torch.bfloat16 else []),
    ]


def _refusal(model: CausalLM, reasons: list[str]) -> str:
    count = num_experts(model)
    if not count or not reasons:
        return ""
    return (
        f"{model.config.model_type} is a mixture of {count} experts, and cannot be trained with "
        f"{'; '.join(reasons)}: tokens would be trained on other experts than they were sampled from. Train it on "
        "one rank with engine.kind=torch engine.dtype=float32 loss.precision=float32, or take a dense model"
    )
