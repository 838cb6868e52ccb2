"""Every type that transformers loads as a causal language model: it is trained as it is, or refused by name.

The long table makes a tiny model of each type, saves and loads it, plays, trains with and without adapters, and loads
what was saved. It then takes a step on two ranks, whose weights are those of one. A type that fails at one of these is
refused before anything is played, for one of ``REASONS``.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers
from testkit.architecture_steps import TOKENIZER
from testkit.every_architecture import model_of
from testkit.ranks import forked
from testkit.tried_architectures import (
    BEGIN,
    END,
    TRIED,
    reason_of,
    recorded,
    recorded_release,
    table,
    tried,
    tried_on_two_ranks,
)
from transformers import CONFIG_MAPPING

from agentgym.errors import ConfigError, UsageError
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.blocks import blocks_of
from agentgym.trainers.models.check import check_model
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.experts import num_experts
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.models.model import add_lora, load_model, save_model
from agentgym.trainers.models.reading import class_for

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SAMPLE = {
    **{"arcee": "", "got_ocr2": "", "git": "", "gemma3n_text": ""},
    **{"bert-generation": "an encoder", "mamba": "no way to sample", "deepseek_v4": "no way to sample"},
}
"""Types of the fast tests with the reason of each: plain; two with vision towers of equal depth; layers that reuse
others' keys; an encoder; a state; a table of whole numbers.
"""
ON_TWO_RANKS = {**SAMPLE, "deepseek_v4": "experts", "dbrx": "experts", "hrm_text": "no list of layers", "zamba2": ""}
long_table = pytest.mark.skipif(not os.environ.get("CI_ALL"), reason="set CI_ALL=1: ten minutes")


def expected(kind: str, at: int, found: str) -> str:
    """Return the recorded reason for one rank (0) or two (1); other releases may find another one."""
    return recorded()[kind][at] if transformers.__version__ == recorded_release() else found


@pytest.mark.slow
@long_table
@pytest.mark.parametrize("kind", TRIED)
def test_it_is_trained_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    found = reason_of(tried(kind, tmp_path))
    assert found == expected(kind, 0, found)


@pytest.mark.slow
@long_table
def test_two_ranks_train_all_alike_or_refuse_them_by_name(tmp_path: Path, warm_python: str) -> None:
    told = tried_on_two_ranks(TRIED, tmp_path, partial(forked, warm_python))
    found = {kind: reason_of(why) for kind, why in told.items()}
    assert found == {kind: expected(kind, 1, found[kind]) for kind in TRIED}


@pytest.mark.parametrize(("kind", "reason"), SAMPLE.items())
def test_a_sample_of_them(kind: str, reason: str, tmp_path: Path) -> None:
    assert reason_of(tried(kind, tmp_path)) == reason


def test_a_sample_of_them_on_two_ranks(tmp_path: Path, warm_python: str) -> None:
    told = tried_on_two_ranks(ON_TWO_RANKS, tmp_path, partial(forked, warm_python))
    assert {kind: reason_of(why) for kind, why in told.items()} == ON_TWO_RANKS


def test_the_page_counts_what_was_found() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table()
    trains = {kind for kind, (one, two) in recorded().items() if not two}
    assert not [kind for kind in trains if recorded()[kind][0] not in ("", "no adapters")]


def test_a_type_that_writes_no_text_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="model type 'vit' is no causal language model of transformers"):
        class_for(CONFIG_MAPPING["vit"]())


def test_adapters_on_a_layer_that_is_no_product_with_a_matrix_are_refused() -> None:
    model: Any = model_of("deepseek_v4")
    kinds = {name.rpartition(".")[2]: type(part).__name__ for name, part in model.named_modules()}
    (grouped,) = (name for name, kind in kinds.items() if kind == "DeepseekV4GroupedLinear")
    with pytest.raises(ConfigError, match=rf"{grouped} of deepseek_v4 \(DeepseekV4GroupedLinear\) is no plain product"):
        add_lora(model, LoraSettings(rank=2, target_modules=(grouped,)), seed=0)


@pytest.mark.parametrize(("kind", "block"), [("got_ocr2", "Qwen2DecoderLayer"), ("git", "GitLayer")])
def test_layers_of_a_vision_tower_are_no_blocks(kind: str, block: str) -> None:
    """Towers have as many layers here, which are larger; GIT's is inside of what reads text."""
    assert type(blocks_of(trunk_of(model_of(kind)))[0]).__name__ == block


@pytest.mark.parametrize(
    ("kind", "parts"),
    [("git", {"image_encoder"}), ("phi4_multimodal", {"image_embed.img_processor", "audio_embed.encoder"})],
)
def test_towers_inside_of_the_network_that_reads_text_are_frozen(kind: str, parts: set[str], tmp_path: Path) -> None:
    save_model(model_of(kind), TOKENIZER, tmp_path)
    said: list[str] = []
    model, _ = load_model(tmp_path, say=said.append)
    assert all(weight.requires_grad != any(part in name for part in parts) for name, weight in model.named_parameters())
    assert "also reads images" in said[0]


def test_dense_models_that_name_experts_are_no_mixtures() -> None:
    """Configurations of Doge and Gemma 4 do so; DBRX's has the number in a part."""
    assert [num_experts(model_of(kind)) for kind in ("doge", "gemma4_text", "dbrx")] == [0, 0, 4]


def test_llama_4_has_its_trunk_under_another_name_than_it_says() -> None:
    model: Any = model_of("llama4_text")
    assert model.base_model is model and trunk_of(model) is model.model
    check_model(model)


def test_a_cache_that_forgets_what_the_model_reads_is_refused() -> None:
    """Moshi's plain forward attends to all tokens, and its cache keeps those of a window."""
    with pytest.raises(ConfigError, match=r"cannot sample from 'moshi'.*row by row: .* after 12 tokens"):
        TorchEngine(model_of("moshi"), num_slots=4, max_context_tokens=128)
