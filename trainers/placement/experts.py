"""Engines and trainers that compute a mixture of experts differently are refused."""

from __future__ import annotations

import torch

from agentgym.errors import ConfigError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.facts import engine_dtype
from agentgym.trainers.models.experts import ranks_reasons, refusal
from agentgym.trainers.models.precision import is_bfloat16
from agentgym.trainers.types import CausalLM


def check_experts(model: CausalLM, config: TrainConfig, num_ranks: int, device: torch.device) -> None:
    """Check that a mixture of experts is sampled from and trained by the same arithmetic; other models pass.

    A router takes the experts with the largest scores, so rounding sends some tokens to other experts. Where engine and
    trainer round differently, ratios of probabilities are then those of different networks, and training collapses
    (Ma et al., "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers",
    https://arxiv.org/abs/2510.11370).

    Raises:
        ConfigError: they differ, or several ranks would each gather all experts.
    """
    if reason := refusal(model, _reasons(config, num_ranks, device)):
        raise ConfigError(reason)


def _reasons(config: TrainConfig, num_ranks: int, device: torch.device) -> list[str]:
    return [
        *ranks_reasons(num_ranks),
        *([f"engine.kind={config.engine.kind}"] if not config.engine.traits.is_embedded else []),
        *(["loss.precision=bfloat16"] if is_bfloat16(config.loss.precision, device) else []),
        *(["engine.dtype=bfloat16"] if engine_dtype(config.engine, device) == torch.bfloat16 else []),
    ]
