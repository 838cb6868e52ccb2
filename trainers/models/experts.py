"""Mixtures of experts: what of them can be trained here, and what is refused."""

from __future__ import annotations

from agentgym.trainers.types import CausalLM

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in configurations of transformers."""


def num_experts(model: CausalLM) -> int:
    """Return the number of experts in a layer of a model; 0 for a dense one.

    A mixture is known by its modules, since configurations of dense models name experts, too (Doge, Gemma 4). Where no
    part of the configuration has their number, as in architectures to come, it is given as 2.
    """
    if not any("expert" in f"{name} {type(part).__name__}".lower() for name, part in model.named_modules()):
        return 0
    sizes = model.config.get_text_config()
    parts = (sizes, *(getattr(sizes, name, None) for name in getattr(sizes, "sub_configs", ())))  # DBRX's layers'
    found = [count for part in parts for name in _COUNTS if isinstance(count := getattr(part, name, None), int)]
    most = max(found, default=2)
    return most if most > 1 else 0


def too_many_ranks(model: CausalLM, num_ranks: int) -> str:
    """Return why several ranks cannot train a mixture of experts; empty for one rank, and for a dense model."""
    return refusal(model, ranks_reasons(num_ranks))


def ranks_reasons(num_ranks: int) -> list[str]:
    """Return several ranks as a reason against a mixture of experts."""
    return [f"{num_ranks} ranks, each of which would gather all experts"] if num_ranks > 1 else []


def refusal(model: CausalLM, reasons: list[str]) -> str:
    """Return why a mixture of experts cannot be trained, given what cannot go with one; empty for a dense model."""
    count = num_experts(model)
    if not count or not reasons:
        return ""
    return (
        f"{model.config.model_type} is a mixture of {count} experts, and cannot be trained with "
        f"{'; '.join(reasons)}: tokens would be trained on other experts than they were sampled from. Train it on "
        "one rank with engine.kind=torch engine.dtype=float32 loss.precision=float32, or take a dense model"
    )
