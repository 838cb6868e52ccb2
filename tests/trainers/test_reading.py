"""Weights of model folders: every tensor is read as it is stored, or the model is refused by name."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from testkit.architecture_steps import TOKENIZER, logits, save_at_odd_addresses
from testkit.architectures import WITH_VISION, linear_layers, model_of, seeing_model
from transformers import AutoModelForCausalLM

from agentgym.errors import ConfigError, CorruptDataError, UsageError
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.model import add_lora, load_model, plain_model, save_model
from agentgym.trainers.models.reading import built
from agentgym.trainers.models.tiny import build_model
from agentgym.trainers.ray.weights import pack

WEIGHTS = "model.safetensors"
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs the extra qlora"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model of random weights."""
    path = tmp_path_factory.mktemp("models") / "base"
    sizes = ModelConfig(hidden_size=128, num_layers=2, head_dim=32, max_context_tokens=160)
    save_model(build_model(TOKENIZER, sizes, 0), TOKENIZER, path)
    return path


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    shutil.copytree(base, tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], **config: Any) -> None:
    """Change the tensors of a folder, and values of its config.json."""
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))


def as_fp8(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Store matrices as DeepSeek and Qwen publish them: 8 bits, and a scale for each block of 128 x 128."""
    made = {}
    for name, tensor in weights.items():
        made[name] = tensor
        if tensor.ndim == 2 and "layers" in name:
            scales = torch.zeros(-(-tensor.shape[0] // 128), -(-tensor.shape[1] // 128))
            codes = torch.zeros_like(tensor)
            for row in range(scales.shape[0]):
                for column in range(scales.shape[1]):
                    at = (slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128))
                    scales[row, column] = tensor[at].abs().max() / 448
                    codes[at] = tensor[at] / scales[row, column]
            made[name] = codes.to(torch.float8_e4m3fn)
            made[name.replace(".weight", ".weight_scale_inv")] = scales
    return made


FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}


def test_weights_of_eight_bits_are_read_with_their_scales(base: Path, folder: Path, tmp_path: Path) -> None:
    rewrite(folder, as_fp8, quantization_config=FP8)
    said: list[str] = []
    model, tokenizer = load_model(folder, say=said.append)
    exact = load_model(base)[0]
    assert 0 < (logits(model) - logits(exact)).abs().max() < 0.15 * logits(exact).abs().max()
    assert said == [f"note: the weights of {folder} are quantized (fp8); they are converted to float32, and saved so"]
    save_model(model, tokenizer, tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    assert torch.equal(logits(load_model(tmp_path / "saved", say=pytest.fail)[0]), logits(model))


def test_scales_that_no_config_names_are_refused(folder: Path) -> None:
    """config.json has lost its quantization_config: 14 scales would be dropped, and codes be weights."""
    rewrite(folder, as_fp8)
    with pytest.raises(CorruptDataError, match=r"14 tensors that .* \(qwen3\) does not read: .*weight_scale_inv"):
        load_model(folder)


def test_matrices_of_whole_numbers_are_refused(folder: Path) -> None:
    rewrite(folder, lambda all_: {n: (t * 100).to(torch.int8) if t.ndim == 2 else t for n, t in all_.items()})
    with pytest.raises(CorruptDataError, match=r"stores 15 matrices as whole numbers \(.* as I8\).*floating-point"):
        load_model(folder)


@needs_bitsandbytes
@pytest.mark.parametrize(("bits", "error"), [({"load_in_8bit": True}, 0.02), ({"load_in_4bit": True}, 0.4)])
def test_weights_of_bitsandbytes_are_read(base: Path, folder: Path, bits: dict[str, bool], error: float) -> None:
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(**bits, bnb_4bit_quant_type="fp4")  # type: ignore[no-untyped-call]
    stored = AutoModelForCausalLM.from_pretrained(base, quantization_config=settings)
    stored.save_pretrained(folder)
    model, exact = load_model(folder)[0], load_model(base)[0]
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert (logits(model) - logits(exact)).abs().max() < error * logits(exact).abs().max()
    with pytest.raises(ConfigError, match=r"quantize=nf4: the weights of .* are quantized already \(bitsandbytes, "):
        load_model(folder, "nf4")


@needs_bitsandbytes
def test_stored_weights_of_four_bits_are_trained_under_adapters(base: Path, folder: Path) -> None:
    """Published checkpoints of NF4, which QLoRA begins with, are read as they are."""
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    AutoModelForCausalLM.from_pretrained(base, quantization_config=settings).save_pretrained(folder)
    packed, plain = load_model(folder, "nf4")[0], load_model(folder)[0]
    torch.testing.assert_close(logits(packed), logits(plain), atol=1e-4, rtol=0)
    adapted = add_lora(packed, LoraSettings(rank=2, quantize="nf4"), seed=0)
    torch.testing.assert_close(logits(plain_model(adapted)), logits(adapted), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("method", "version"), [("mxfp4", "5.22.0"), ("fp8", "5.23.0")])
def test_a_release_of_transformers_that_reads_other_numbers_is_refused(
    method: str, version: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentgym.trainers.models.quantized.transformers.__version__", version)
    rewrite(folder, lambda weights: weights, quantization_config={"quant_method": method})
    with pytest.raises(UsageError, match=rf"quantized \({method}\), which transformers {version} does not read"):
        load_model(folder)


def test_weights_of_mxfp4_are_read(tmp_path: Path) -> None:
    """As gpt-oss is published: experts of 4-bit numbers, with an exponent for each 32 of them."""
    folder = tmp_path / "model"
    model: Any = model_of("gpt_oss", hidden_size=64, intermediate_size=32, vocab_size=len(TOKENIZER))
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    generator, stored = torch.Generator().manual_seed(0), {}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("_proj") and weight.ndim == 3:
                num_experts, num_in, num_out = weight.shape
                codes = torch.randint(0, 16, (num_experts, num_out, num_in // 32, 32), generator=generator)
                weight.copy_((values[codes] * 2.0**-4).reshape(num_experts, num_out, num_in).transpose(1, 2))
                stored[f"{name}_blocks"] = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
                stored[f"{name}_scales"] = torch.full(codes.shape[:3], 127 - 4, dtype=torch.uint8)
    save_model(model, TOKENIZER, folder)
    kept = {name: tensor for name, tensor in load_file(folder / WEIGHTS).items() if f"{name}_blocks" not in stored}
    rewrite(folder, lambda _: kept | stored, quantization_config={"quant_method": "mxfp4"})
    torch.testing.assert_close(logits(load_model(folder)[0]), logits(model), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["gptq", "awq", "modelopt", "hqq"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_other_quantizations_are_refused_by_name(method: str, is_nested: bool, folder: Path) -> None:
    stored = {"quantization_config": {"quant_method": method, "bits": 4}}
    values = json.loads((folder / "config.json").read_text())
    whole = {"model_type": "mistral3", "text_config": values | stored} if is_nested else values | stored
    (folder / "config.json").write_text(json.dumps(whole))
    with pytest.raises(UsageError, match=rf"quantized \({method}\), and transformers cannot turn these into floating"):
        load_model(folder)


def test_constants_of_old_files_are_no_weights(tmp_path: Path) -> None:
    """The files of GPT-2 on the hub have the causal mask of every layer."""
    save_model(model_of("gpt2", vocab_size=len(TOKENIZER)), TOKENIZER, tmp_path / "model")
    masks = {f"transformer.h.{n}.attn.bias": torch.ones(1, 1, 8, 8) for n in range(4)}
    rewrite(tmp_path / "model", lambda all_: all_ | masks)
    load_model(tmp_path / "model", say=pytest.fail)


def test_two_matrices_where_config_says_one_stay_two(folder: Path, tmp_path: Path) -> None:
    """QLoRA's saved model, servers' tensors and copies are built from the configuration."""
    changed = {"lm_head.weight": torch.randn(len(TOKENIZER), 128)}
    rewrite(folder, lambda all_: all_ | changed, tie_word_embeddings=True)
    model, tokenizer = load_model(folder)
    head: Any = model.get_output_embeddings()
    assert torch.equal(head.weight, changed["lm_head.weight"])
    again: Any = AutoModelForCausalLM.from_config(model.config)  # type: ignore[no-untyped-call]
    assert again.lm_head.weight is not again.model.embed_tokens.weight
    save_model(model, tokenizer, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tie_word_embeddings"] is False
    assert torch.equal(logits(load_model(tmp_path / "saved")[0]), logits(model))


@needs_bitsandbytes
def test_qlora_saves_two_matrices_where_there_are_two(folder: Path, tmp_path: Path) -> None:
    rewrite(folder, lambda all_: all_ | {"lm_head.weight": torch.randn(len(TOKENIZER), 128)}, tie_word_embeddings=True)
    model = add_lora(load_model(folder, "nf4")[0], LoraSettings(rank=2, quantize="nf4"), seed=0)
    save_model(model, TOKENIZER, tmp_path / "saved")
    torch.testing.assert_close(logits(load_model(tmp_path / "saved")[0]), logits(model), atol=1e-4, rtol=0)


@needs_bitsandbytes
@pytest.mark.parametrize("kind", ["gpt2", "gpt_oss", "qwen3_5_text", "qwen3_moe", "qwen3_vl"])
def test_qlora_saves_all_that_a_model_computes_with(kind: str, tmp_path: Path) -> None:
    """Sinks, decays and adapted experts have other names than ``weight``; GPT-2's matrices are input by output."""
    make = seeing_model if kind in WITH_VISION else model_of
    save_model(make(kind, vocab_size=len(TOKENIZER)), TOKENIZER, tmp_path / "base")
    settings = LoraSettings(rank=2, quantize="nf4", target_modules=linear_layers(kind))
    model = add_lora(load_model(tmp_path / "base", "nf4", say=lambda line: None)[0], settings, seed=0)
    for name, weight in model.named_parameters():
        if ".lora_B" in name:
            weight.data.normal_(std=0.1)
    save_model(model, TOKENIZER, tmp_path / "saved")
    loaded, _ = load_model(tmp_path / "saved", say=lambda line: None)
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-4, rtol=1e-3)


def test_weights_lie_where_copies_of_them_do(base: Path) -> None:
    """Weights of a mapped file lie at odd addresses, where products of one row differ in their last bits."""
    assert {weight.data_ptr() % 64 for weight in load_model(base)[0].parameters()} == {0}
    assert pack(load_model(base)[0], 1).tensors


@pytest.mark.parametrize("kind", ["deepseek_v3", "gpt_neox", "qwen3_vl"])
def test_a_model_of_a_configuration_computes_as_the_loaded_one(kind: str, tmp_path: Path) -> None:
    """Engines on a cluster build it so; without oneDNN's products or with other layouts its last bits would differ."""
    sizes = {"vocab_size": len(TOKENIZER), "intermediate_size": 2048}
    original = seeing_model(kind, **sizes) if kind in WITH_VISION else model_of(kind, **sizes)
    save_at_odd_addresses(original, TOKENIZER, tmp_path)
    loaded, _ = load_model(tmp_path, say=lambda line: None)
    whole: Any = loaded
    tensors = (*whole.parameters(), *(one for one in whole.buffers() if one.is_floating_point()))
    assert {tensor.data_ptr() % 64 for tensor in tensors} == {0}
    copied: Any = built(whole.config)
    copied.load_state_dict(whole.state_dict())
    assert type(copied) is type(whole) and torch.equal(logits(copied), logits(whole))


def test_merged_weights_beside_their_adapters_are_refused(folder: Path) -> None:
    from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model

    adapters = folder.with_name("adapters")
    whole: Any = AutoModelForCausalLM.from_pretrained(folder)
    get_peft_model(whole, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(adapters)
    values = json.loads((adapters / "adapter_config.json").read_text()) | {"base_model_name_or_path": str(folder)}
    (adapters / "adapter_config.json").write_text(json.dumps(values))
    merged: Any = AutoPeftModelForCausalLM.from_pretrained(adapters)
    merged.merge_and_unload().save_pretrained(adapters)  # in place: adapter_config.json stays
    TOKENIZER.save_pretrained(adapters)
    with pytest.raises(
        CorruptDataError, match=r"has the weights of a whole model and adapters.*merged already, remove"
    ):
        load_model(adapters)


def add_shards(folder: Path) -> None:
    save_file(load_file(folder / WEIGHTS), folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(load_file(folder / WEIGHTS), "model-00001-of-00001.safetensors")}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def add_other_pickle(folder: Path) -> None:
    torch.save({name: tensor + 1 for name, tensor in load_file(folder / WEIGHTS).items()}, folder / "pytorch_model.bin")


def add_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": "{{ messages }}"}))


@pytest.mark.parametrize(
    ("add", "told"),
    [
        (add_shards, r"holds two models: model\.safetensors, and 1 files that model\.safetensors\.index\.json names"),
        (add_other_pickle, r"holds two models: its \.safetensors files and pytorch_model\.bin differ \("),
        (add_template, r"has two chat templates that differ, chat_template\.jinja and chat_template in"),
    ],
)
def test_files_that_answer_one_question_twice_are_refused(add: Callable[[Path], None], told: str, folder: Path) -> None:
    add(folder)
    with pytest.raises(CorruptDataError, match=told):
        load_model(folder)


def test_the_same_weights_in_two_formats_are_one_model(folder: Path) -> None:
    torch.save(
        {name: tensor.half() for name, tensor in load_file(folder / WEIGHTS).items()}, folder / "pytorch_model.bin"
    )
    load_model(folder, say=pytest.fail)
