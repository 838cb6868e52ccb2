"""Every type that transformers loads as a causal language model: it is trained as it is, or refused by name.

The long table makes a tiny model of each type, saves and loads it, plays, trains with and without adapters, and loads
what was saved. A type that fails at one of these is refused before anything is played, for one of ``REASONS``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.engine_plays import play_all, run
from testkit.every_architecture import KINDS, UNTRIED, model_of
from transformers import CONFIG_MAPPING

from agentgym.errors import ConfigError, UsageError
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.blocks import blocks_of
from agentgym.trainers.models.check import check_model
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.models.model import add_lora, is_linear, load_model, save_model
from agentgym.trainers.models.reading import class_for
from agentgym.trainers.models.tiny import train_tokenizer

TOKENIZER = train_tokenizer(["Count to 2. Count to 3. add: 1 The count is 1."] * 5, 300)
REASONS = {
    "an encoder": "is no causal language model",
    "no way to sample": "the embedded engine cannot sample from",
    "not its own head": "cannot be trained here",
    "no class": "is no causal language model of transformers",
    "on one rank": "cannot be trained on several ranks",
    "adapters": r"model\.lora\.target_modules",
}
SAMPLE = ("arcee", "bert-generation", "deepseek_v4", "got_ocr2", "mamba")
"""Types of the fast tests: plain; an encoder; a table of whole numbers; a vision tower of equal depth; a state."""


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=torch.arange(20, 40)[None], use_cache=False).logits
    return found


def trained(model: Any) -> Any:
    """Return a model after a step of plain gradient descent."""
    ids = torch.arange(20, 40)[None]
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    chosen = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])
    (-chosen.mean()).backward()
    optimizer.step()
    return model


def again(model: Any, folder: Path) -> Any:
    """Return a model as it is loaded after it was saved; its logits are the same."""
    save_model(model, TOKENIZER, folder)
    loaded, _ = load_model(folder, say=lambda line: None)
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-4, rtol=1e-3)
    return loaded


def tried(kind: str, folder: Path) -> str:
    """Load, play, train and save a model of a type; return the reason if it is refused, else an empty text."""
    original = model_of(kind)
    save_model(original, TOKENIZER, folder / "base")
    try:
        model, _ = load_model(folder / "base", say=lambda line: None)
        check_model(model)
        engine = TorchEngine(model, num_slots=4, max_context_tokens=128)
    except (ConfigError, UsageError) as error:
        return str(error)
    before = logits(original)
    torch.testing.assert_close(logits(model), before, atol=1e-4, rtol=1e-3)
    run(play_all(engine, model, num_sessions=2, num_turns=2))
    model = again(trained(model), folder / "trained")
    assert not torch.equal(logits(model), before)
    try:
        parts = [part for block in blocks_of(trunk_of(model)) for part in block.named_modules()]
        names = {name.rpartition(".")[2] for name, part in parts if is_linear(part)}
        targets = tuple(sorted(name for name in names if not name.isdigit()))
        adapted = add_lora(model, LoraSettings(rank=2, target_modules=targets), seed=0)
    except ConfigError as error:
        return str(error)
    again(trained(adapted), folder / "adapted")
    return ""


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("CI_ALL"), reason="set CI_ALL=1: seven minutes")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in UNTRIED])
def test_it_is_trained_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    told = tried(kind, tmp_path)
    assert not told or any(re.search(reason, told) for reason in REASONS.values()), told


@pytest.mark.parametrize("kind", SAMPLE)
def test_a_sample_of_them(kind: str, tmp_path: Path) -> None:
    told = tried(kind, tmp_path)
    expected = {"bert-generation": "an encoder", "mamba": "no way to sample", "deepseek_v4": "no way to sample"}.get(
        kind
    )
    assert re.search(REASONS[expected], told) if expected else not told


def test_a_type_that_writes_no_text_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="model type 'vit' is no causal language model of transformers"):
        class_for(CONFIG_MAPPING["vit"]())


def test_adapters_on_a_layer_that_is_no_product_with_a_matrix_are_refused() -> None:
    model: Any = model_of("deepseek_v4")
    kinds = {name.rpartition(".")[2]: type(part).__name__ for name, part in model.named_modules()}
    (grouped,) = (name for name, kind in kinds.items() if kind == "DeepseekV4GroupedLinear")
    with pytest.raises(ConfigError, match=rf"{grouped} of deepseek_v4 \(DeepseekV4GroupedLinear\) is no plain product"):
        add_lora(model, LoraSettings(rank=2, target_modules=(grouped,)), seed=0)


def test_layers_of_a_vision_tower_are_no_blocks() -> None:
    """Both have two layers here, and the tower's are larger."""
    assert type(blocks_of(trunk_of(model_of("got_ocr2")))[0]).__name__ == "Qwen2DecoderLayer"
