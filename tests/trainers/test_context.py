"""Ranks that split the tokens of training rows (``ranks.context_size``) learn what one rank learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit import TESTKIT
from testkit.ranks import forked
from testkit.tiny_models import tiny_model
from transformers import AutoConfig, AutoModelForCausalLM

from agentgym.errors import ConfigError
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.rank_limits import check_ranks
from agentgym.trainers.data.fit import can_be_split
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.models.context import context_of, splitting
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.models.precision import use_fused_attention
from agentgym.trainers.planning.footprint import footprint
from agentgym.trainers.recipes import load_recipe


def updated(address: str, out: Path, num_ranks: int, *settings: str) -> Any:
    forked(address, num_ranks, str(TESTKIT / "ranked_update.py"), str(out), *settings)
    return torch.load(out, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4], ids=["one pair", "two pairs"])
def test_ranks_that_split_rows_update_as_one(num_ranks: int, tmp_path: Path, warm_python: str) -> None:
    """Several updates and epochs, a limit of the KL, and one of three steps with recomputed layers."""
    one = updated(warm_python, tmp_path / "one.pt", 1, "rows")
    both = updated(warm_python, tmp_path / "both.pt", num_ranks, "rows", "float32", "2")
    for name, tensor in one["model"].items():
        torch.testing.assert_close(both["model"][name], tensor, atol=2e-6, rtol=0)
    for expected, got in zip(one["metrics"], both["metrics"], strict=True):
        assert got == pytest.approx(expected, abs=1e-4)
    assert both["longest"] == -(-one["longest"] // 2), "no rank forwards more than half of a row"


def test_only_full_attention_of_torchs_kernels_can_be_split() -> None:
    model: Any = tiny_model()
    assert not can_be_split(model), "its attention is not agentgym's yet"
    use_fused_attention(model)
    assert can_be_split(model)
    windowed = AutoConfig.for_model(
        "mistral", vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=8,
    )  # fmt: skip
    other: Any = AutoModelForCausalLM.from_config(windowed)  # type: ignore[no-untyped-call]
    use_fused_attention(other)
    assert not can_be_split(other)


def test_the_context_ends_with_its_block_also_after_an_error() -> None:
    model: Any = tiny_model()
    split: Any = object()
    with pytest.raises(ZeroDivisionError), splitting(model, split):
        assert context_of(model.config) is split
        with splitting(model, None):
            assert context_of(model.config) is None
        assert context_of(model.config) is split
        raise ZeroDivisionError
    assert context_of(model.config) is None


def test_pairs_of_ranks_have_the_same_share_and_count_once() -> None:
    ranks = [Ranks(rank, 4) for rank in range(4)]
    shares = [each.share(3, width=2) for each in ranks]
    assert shares[0] == shares[1] == [(0, 2), (2, 2)]
    assert shares[2] == shares[3] == [(1, 2), (1, 0)]
    assert Ranks().counts_rows


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["ranks.context_size=3"], "ranks.context_size=3 does not divide 4 ranks: set ranks.context_size=1"),
        (["ranks.context_size=2", "loss.layout=packed"], "splits rows, which loss.layout=packed joins"),
    ],
)
def test_what_cannot_be_split_is_refused(overrides: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_ranks(apply_overrides(load_recipe("tiny"), overrides), 4)


def test_the_plan_counts_a_ranks_part_of_the_activations() -> None:
    config = apply_overrides(load_recipe("webshop-qwen2.5-7b-fsdp"), ["loss.tokens_per_microbatch=8192"])
    split = replace(config, ranks=replace(config.ranks, context_size=4))
    whole, part = (footprint(each, *plan_model(each.model), 8) for each in (config, split))
    assert part.activations * 4 == whole.activations
    assert part.weights == whole.weights
