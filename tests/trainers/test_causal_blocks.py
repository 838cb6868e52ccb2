"""Attention after a prefix in blocks: the numbers of torch's kernel with a mask, and only where the mask is causal."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import sliding_window_causal_mask_function

from agentgym.trainers.models import causal_blocks, precision
from agentgym.trainers.models.causal_blocks import attend_in_blocks, is_marked, marked_mask
from agentgym.trainers.models.kv_cache import cache_argument, cache_of
from agentgym.trainers.models.precision import use_fused_attention


def tensors(num_before: int, num_new: int, key_heads: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(num_new)
    num_all = num_before + num_new
    shapes = [(2, 4, num_new, 8), (2, key_heads, num_all, 8), (2, key_heads, num_all, 8)]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize(("num_before", "num_new"), [(1, 2), (70, 128), (5, 129), (200, 300)])
def test_values_and_gradients_are_those_of_a_mask(num_before: int, num_new: int, key_heads: int) -> None:
    mask = torch.ones(num_new, num_before + num_new, dtype=torch.bool).tril(num_before)
    results = []
    for is_in_blocks in (True, False):
        query, key, value = tensors(num_before, num_new, key_heads)
        if is_in_blocks:
            out = attend_in_blocks(query, key, value, 0.3, 0.0).transpose(1, 2)
        else:
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=0.3, enable_gqa=key_heads != 4
            )
        out.square().sum().backward()  # type: ignore[no-untyped-call]
        results.append([out.detach(), *(tensor.grad for tensor in (query, key, value))])
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)


def mask_of(**settings: Any) -> Tensor | None:
    return marked_mask(batch_size=2, **{"q_length": 4, "kv_length": 10, "q_offset": 6, **settings})


def test_only_a_causal_mask_after_a_prefix_is_marked() -> None:
    assert is_marked(mask_of())
    assert not is_marked(None)
    assert mask_of(q_length=10, q_offset=0) is None  # without a prefix, torch's kernel skips the keys itself
    padding = torch.ones(2, 10, dtype=torch.bool)
    padding[1, 0] = False
    assert not is_marked(mask_of(attention_mask=padding))
    assert not is_marked(mask_of(mask_function=sliding_window_causal_mask_function(3)))
    changed = mask_of()
    assert changed is not None
    assert not is_marked(changed & True)


@pytest.mark.parametrize("window", [None, 3])
def test_a_model_attends_in_blocks_where_its_attention_is_full(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    shape: dict[str, Any] = {
        **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"num_key_value_heads": 1, "head_dim": 8, "vocab_size": 32, "sliding_window": window},
    }
    config = AutoConfig.for_model("mistral" if window else "qwen3", **shape)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    use_fused_attention(model)
    monkeypatch.setattr(causal_blocks, "BLOCK", 4)
    calls = []

    def counted(*given: Any) -> Tensor:
        calls.append(given)
        return attend_in_blocks(*given)

    monkeypatch.setattr(precision, "attend_in_blocks", counted)
    ids = torch.arange(1, 17)[None]
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :6], use_cache=True)
        rest = model(ids[:, 6:], use_cache=True, **{cache_argument(model): cache_of(first)}).logits
    torch.testing.assert_close(torch.cat([first.logits, rest], dim=1), whole, rtol=1e-4, atol=1e-5)
    assert len(calls) == (0 if window else 2)
