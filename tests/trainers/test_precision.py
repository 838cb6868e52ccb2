"""``loss.precision=bfloat16``: matrices in bfloat16, all that is kept in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from testkit.ranked_update import made_verdicts
from testkit.tiny_models import tiny_model

from agentgym.trainers.losses.config import LayoutKind, LossConfig
from agentgym.trainers.losses.options import KlOptions
from agentgym.trainers.models.model import frozen_copy
from agentgym.trainers.phases.update import update_policy


def stepped(config: LossConfig) -> tuple[torch.Tensor, set[torch.dtype], dict[str, float]]:
    """The gradient of one update, what kinds of numbers the linear layers gave, and the update's metrics."""
    model: Any = tiny_model()
    seen: set[torch.dtype] = set()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, __, out: seen.add(out.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    reference = frozen_copy(tiny_model(seed=1)) if config.regularisers else None
    metrics = update_policy(
        model, optimizer, made_verdicts(0), config, temperature=1.0, max_grad_norm=1e9, reference=reference
    ).metrics
    kept = [*model.parameters(), *(p.grad for p in model.parameters())]
    kept += [state["exp_avg"] for state in optimizer.state.values()]
    assert {tensor.dtype for tensor in kept} == {torch.float32}
    return torch.cat([p.grad.flatten() for p in model.parameters()]), seen, metrics


@pytest.mark.parametrize("layout", get_args(LayoutKind))
@pytest.mark.parametrize("more", [{}, {"recompute_activations": True}, {"regularisers": (KlOptions(coef=0.1),)}])
def test_the_gradient_is_that_of_float32_up_to_rounding(layout: LayoutKind, more: dict[str, Any]) -> None:
    exact = LossConfig(layout=layout, **more)
    gradient, seen, metrics = stepped(exact)
    rounded, seen_rounded, metrics_rounded = stepped(replace(exact, precision="bfloat16"))
    assert (seen, seen_rounded) == ({torch.float32}, {torch.bfloat16})
    assert not torch.equal(gradient, rounded)
    assert torch.nn.functional.cosine_similarity(gradient, rounded, dim=0) > 0.99
    assert metrics_rounded["entropy"] == pytest.approx(metrics["entropy"], rel=0.05)
