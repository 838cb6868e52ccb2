"""Models of many architectures: read, played, trained with and without adapters, on two ranks, saved, read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit import TESTKIT
from testkit.architecture_steps import TOKENIZER, again, logits, trained
from testkit.architectures import BATCHED, BY_NAME, ROW_BY_ROW, WITH_VISION, linear_layers, model_of, seeing_model
from testkit.engine_plays import play_all, run
from testkit.ranks import forked
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from agentgym.errors import ConfigError
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.blocks import blocks_of
from agentgym.trainers.models.check import check_model
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.experts import num_experts
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.models.model import add_lora, load_model, save_model
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.models.reading import senses_of

KINDS = (*BATCHED, *ROW_BY_ROW, *BY_NAME, *WITH_VISION)


def made(kind: str) -> Any:
    size = {"vocab_size": len(TOKENIZER)}
    return seeing_model(kind, **size) if kind in WITH_VISION else model_of(kind, **size)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_read_trained_and_saved(kind: str, rank: int, tmp_path: Path) -> None:
    original = made(kind)
    save_model(original, TOKENIZER, tmp_path / "base")
    model, _ = load_model(tmp_path / "base", say=lambda line: None)
    torch.testing.assert_close(logits(model), logits(original), atol=1e-5, rtol=1e-5)
    check_model(model)
    model = trained(add_lora(model, LoraSettings(rank=rank, target_modules=linear_layers(kind)), seed=0))
    assert not torch.equal(logits(model), logits(original))
    again(model, tmp_path / "saved")


def test_ranks_share_models_of_every_architecture(warm_python: str) -> None:
    """Lists of layers have many names; the trunk of gpt2, gptj, falcon and of models that see has no ``layers``."""
    kinds = ["gpt2", "bloom", "gemma3", "qwen3_vl"]
    said = forked(warm_python, 2, str(TESTKIT / "ranked_architectures.py"), *kinds)
    assert all(said.count(f"{kind} the same") == 2 for kind in kinds)


@pytest.mark.slow
def test_ranks_share_models_of_all_architectures(warm_python: str) -> None:
    kinds = [kind for kind in KINDS if not num_experts(made(kind))]
    said = forked(warm_python, 2, str(TESTKIT / "ranked_architectures.py"), *kinds)
    assert all(said.count(f"{kind} the same") == 2 for kind in kinds)


@pytest.mark.parametrize("kind", WITH_VISION)
def test_a_model_that_also_sees_plays_by_its_text(kind: str) -> None:
    model: Any = seeing_model(kind)
    engine = TorchEngine(model, num_slots=4, max_context_tokens=128)
    run(play_all(engine, model, num_sessions=2, num_turns=2))


def test_what_sees_is_frozen_and_kept(tmp_path: Path) -> None:
    original = made("qwen3_vl")
    save_model(original, TOKENIZER, tmp_path / "base")
    said: list[str] = []
    model, _ = load_model(tmp_path / "base", say=said.append)
    assert len(said) == 1 and "Qwen3VLForConditionalGeneration also reads images" in said[0]
    assert "since prompts hold text alone: its folder has no preprocessor_config.json" in said[0]
    assert {name.split(".")[1] for name, weight in model.named_parameters() if not weight.requires_grad} == {"visual"}
    adapted = add_lora(model, LoraSettings(rank=2, target_modules=("q_proj", "linear_fc1")), seed=0)
    assert not any("visual" in name for name, _ in adapted.named_parameters() if ".lora_" in name)
    save_model(trained(model), TOKENIZER, tmp_path / "saved")
    whole: Any = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved")
    kept = {name: weight for name, weight in original.named_parameters() if "visual" in name}
    assert kept and all(torch.equal(whole.get_parameter(name), weight) for name, weight in kept.items())


def test_a_vision_tower_that_the_text_model_leaves_out_is_named(tmp_path: Path) -> None:
    values = {**WITH_VISION["qwen3_vl"], "text_config": dict(made("qwen3_5_text").config.to_dict())}
    config = CONFIG_MAPPING["qwen3_5"](**values)
    whole: Any = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    save_model(whole, TOKENIZER, tmp_path / "base")
    said: list[str] = []
    model, _ = load_model(tmp_path / "base", say=said.append)
    number = sum(1 for name, _ in whole.named_parameters() if "visual" in name)
    assert len(said) == 1 and f"Qwen3_5ForCausalLM leaves out {number} tensors" in said[0] and "visual" in said[0]
    torch.testing.assert_close(logits(model), logits(whole))


def test_a_model_without_a_list_of_its_layers_is_refused() -> None:
    model = model_of("gpt2")
    vars(model.config)["n_layer"] = 7
    with pytest.raises(ConfigError, match="'gpt2' cannot be trained on several ranks: it has no list of its 7 layers"):
        blocks_of(trunk_of(model))


@pytest.mark.parametrize(
    ("kind", "num_ranks", "told"),
    [
        ("gpt2", 2, ""),
        ("qwen3_moe", 1, ""),
        ("qwen3_moe", 2, "qwen3_moe is a mixture of 4 experts, and cannot be trained with 2 ranks"),
    ],
)
def test_a_dry_run_knows_what_ranks_can_share(kind: str, num_ranks: int, told: str, tmp_path: Path) -> None:
    model_of(kind).config.save_pretrained(tmp_path)
    config = ModelConfig(path=str(tmp_path))
    if not told:
        plan_model(config, num_ranks)
        return
    with pytest.raises(ConfigError, match=told):
        plan_model(config, num_ranks)


def test_a_dry_run_refuses_what_cannot_be_built(tmp_path: Path, warm_agentgym: Any) -> None:
    """MusicGen's class for text reads another configuration than the folder's."""
    CONFIG_MAPPING["musicgen"]().save_pretrained(tmp_path)
    done = warm_agentgym("train", "tiny", f"model.path={tmp_path}", "--dry-run")
    assert done.returncode == 2 and "the model cannot be built: AttributeError: 'MusicgenConfig'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_names_weights_that_cannot_be_read(tmp_path: Path, warm_agentgym: Any) -> None:
    model_of("gpt2").config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": {"quant_method": "gptq"}}))
    done = warm_agentgym("train", "tiny", f"model.path={tmp_path}", "--dry-run")
    assert done.returncode == 2 and "quantized (gptq), and transformers cannot" in done.stderr


def test_models_of_text_alone_have_no_senses() -> None:
    assert not senses_of(model_of("gpt2")) and not senses_of(model_of("gemma3_text"))
