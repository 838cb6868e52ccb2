"""``loss.precision``: matrices in bfloat16, all that is kept in float32; and attention by fused kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast, get_args

import pytest
import torch
from testkit.ranked_update import made_verdicts
from testkit.tiny_models import tiny_model
from torch.nn.attention import SDPBackend
from torch.profiler import ProfilerActivity, profile

from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.engines.facts import engine_dtype
from agentgym.trainers.kinds import LayoutKind, Precision
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import KlOptions
from agentgym.trainers.models import precision
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.model import add_lora, frozen_copy
from agentgym.trainers.models.precision import (
    allow_tf32,
    chosen_backend,
    computing,
    is_bfloat16,
    matched_heads,
    skip_adapter_casts,
    takes_groups,
    use_fused_attention,
)
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.placement import build
from agentgym.trainers.recipes import load_recipe


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


@pytest.mark.parametrize(
    ("device", "dtype", "has_mask", "takes"),
    [
        ("cuda", torch.bfloat16, False, True),
        ("cuda", torch.bfloat16, True, False),
        ("cuda", torch.float32, False, False),
        ("cpu", torch.float32, True, True),
    ],
)
def test_key_heads_are_repeated_where_no_fused_kernel_groups_them(
    device: str, dtype: torch.dtype, has_mask: bool, takes: bool
) -> None:
    assert takes_groups(device, dtype, has_mask=has_mask) == takes


@pytest.mark.parametrize("has_mask", [False, True])
def test_repeated_heads_attend_as_grouped_ones(has_mask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny_model()
    use_fused_attention(model)
    ids = torch.arange(1, 20)[None]
    sees = torch.ones(19, 19, dtype=torch.bool).tril()
    mask = torch.zeros(19, 19).masked_fill(~sees, -1e9)[None, None] if has_mask else None
    with torch.no_grad():
        grouped = model(ids, attention_mask=mask).logits
        monkeypatch.setattr(precision, "takes_groups", lambda *_, **__: False)
        repeated = model(ids, attention_mask=mask).logits
        model.config._attn_implementation = "sdpa"
        plain = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(repeated, grouped, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain, grouped, atol=1e-5, rtol=0)


def test_under_autocast_the_dtype_is_that_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []

    def noted(kind: str, dtype: torch.dtype, **_: object) -> bool:
        seen.append(dtype)
        return True

    monkeypatch.setattr(precision, "takes_groups", noted)
    query, key = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8)
    matched_heads(query, key, key, None)
    with computing("bfloat16", torch.device("cpu")):
        matched_heads(query, key, key, None)
    assert seen == [torch.float32, torch.bfloat16]


def test_the_chosen_kernel_is_told() -> None:
    query, key = torch.randn(1, 4, 16, 32), torch.randn(1, 2, 16, 32)
    assert chosen_backend(query, key, key, is_causal=True) == SDPBackend.FLASH_ATTENTION
    double = torch.zeros(1, 1, 16, 16, requires_grad=True)  # a mask with a gradient, which no fused kernel takes
    assert chosen_backend(query, query, query, double) == SDPBackend.MATH


def test_tf32_is_what_float32_means_on_a_gpu() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for kind, is_allowed in (("float32", True), ("float32_ieee", False), ("auto", True)):
            allow_tf32(cast("Precision", kind))
            assert torch.backends.cuda.matmul.allow_tf32 is is_allowed
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [is_bfloat16(cast("Precision", kind), gpu) for kind in get_args(Precision)] == [True, True, False, False]
    assert [is_bfloat16(cast("Precision", kind), cpu) for kind in get_args(Precision)] == [False, True, False, False]


def test_a_large_model_is_told_of_bfloat16_where_the_processor_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, model = load_recipe("tiny"), tiny_model()
    monkeypatch.setattr(build, "multiplies_bfloat16", lambda: True)
    assert build.precision_note(plain, model) == "", "a tiny model is slower in it"
    monkeypatch.setattr(build, "_MIN_BFLOAT16_PARAMETERS", 1)
    note = build.precision_note(plain, model)
    settings = note.rpartition(" with ")[2].split()
    assert "0.7 of the time" in note and len(settings) == 2
    taken = apply_overrides(plain, settings)
    assert is_bfloat16(taken.loss.precision, model.device)
    assert engine_dtype(taken.engine, model.device) == torch.bfloat16
    of_vllm = ["engine.kind=vllm", 'engine.urls=["http://127.0.0.1:9"]']
    for chosen in (settings[:1], settings[1:], of_vllm, ["loss.precision=float32"]):
        assert build.precision_note(apply_overrides(plain, chosen), model) == ""
    monkeypatch.setattr(build, "multiplies_bfloat16", lambda: False)
    assert build.precision_note(plain, model) == ""


def test_adapters_without_casts_have_the_same_gradient() -> None:
    def gradient(*, skips: bool) -> tuple[torch.Tensor, int]:
        model: Any = add_lora(tiny_model(), LoraSettings(rank=4), seed=0)
        with torch.no_grad():  # peft begins with products of zero
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(len(name)))
        if skips:
            skip_adapter_casts(model, "bfloat16")
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        config = LossConfig(precision="bfloat16")
        optimizer = torch.optim.AdamW(trained, lr=1e-4)
        with profile(activities=[ProfilerActivity.CPU]) as kernels:
            update_policy(model, optimizer, made_verdicts(0), config, temperature=1.0, max_grad_norm=1e9)
        casts = sum(event.count for event in kernels.key_averages() if event.key == "aten::_to_copy")
        return torch.cat([parameter.grad.flatten() for parameter in trained]), casts

    (one, num_casts), (other, num_left) = gradient(skips=False), gradient(skips=True)
    assert torch.equal(one, other) and bool(one.any())
    assert num_left < num_casts


def test_adapters_in_float32_are_left_alone() -> None:
    model: Any = add_lora(tiny_model(), LoraSettings(rank=4), seed=0)
    skip_adapter_casts(model, "auto")  # on a CPU: float32
    assert all(module.cast_input_dtype_enabled for module in model.modules() if hasattr(module, "lora_A"))
