"""Layers compiled for the trainer's passes."""

from __future__ import annotations

import copy
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.ranked_update import made_verdicts
from testkit.tiny_models import tiny_model
from torch._dynamo.utils import counters

from agentgym.errors import ConfigError
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.rank_limits import check_ranks
from agentgym.trainers.kinds import LayoutKind
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models import compiled
from agentgym.trainers.models.blocks import blocks_of
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.models.precision import use_fused_attention
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.recipes import load_recipe


def updated(model: Any, config: LossConfig) -> torch.Tensor:
    """Return a model's weights after an update on rows of several lengths."""
    use_fused_attention(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update_policy(model, optimizer, made_verdicts(0), config, temperature=0.9, max_grad_norm=100.0)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def must_be_the_same(layout: LayoutKind, family: str) -> Any:
    plain = tiny_model(family, vocab_size=64)
    model, begin = copy.deepcopy(plain), torch.cat([p.detach().flatten() for p in plain.parameters()])
    torch._dynamo.reset()
    counters.clear()
    want = updated(plain, LossConfig(tokens_per_microbatch=64, layout=layout))
    assert not counters["stats"], "nothing is compiled by default"
    found = updated(model, LossConfig(tokens_per_microbatch=64, layout=layout, compile=True))
    assert (want - begin).abs().max() > 1e-3
    torch.testing.assert_close(found, want, atol=1e-5, rtol=0)
    assert counters["stats"]["unique_graphs"] in (1, 2), "layers that are alike share the code, for rows of any length"
    assert not counters["graph_break"]
    return model


@pytest.mark.parametrize(("family", "layout"), [("qwen3", "rows"), ("llama", "packed")])
def test_a_compiled_model_is_trained_as_a_plain_one(
    layout: LayoutKind, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")  # all but the code for the processor
    model = must_be_the_same(layout, family)
    assert all(layer._compiled_call_impl is None for layer in blocks_of(trunk_of(model))), "for those passes alone"
    copy.deepcopy(model)
    assert not any("compiled" in name for name in model.state_dict())


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("g++") is None or not Path(sysconfig.get_path("include"), "Python.h").is_file(),
    reason="needs a compiler for C++ and Python's headers: apt-get install g++ python3-dev",
)
def test_code_for_the_processor_gives_the_same() -> None:
    must_be_the_same("rows", "qwen3")


def test_what_cannot_go_with_compiling() -> None:
    for values, reason in (
        ({}, "needs layout=rows or packed"),
        ({"layout": "packed", "recompute_activations": True}, "cannot go with recompute_activations=true"),
    ):
        with pytest.raises(ConfigError, match=reason):
            LossConfig(compile=True, **values)  # type: ignore[arg-type]
    config = apply_overrides(load_recipe("tiny"), ["loss.layout=rows", "loss.compile=true"])
    check_ranks(config, 1)
    with pytest.raises(ConfigError, match=r"2 ranks cannot train with loss\.compile=true"):
        check_ranks(config, 2)
