"""Adapters as folders of peft: saved by a run, read as a model, trained further; and models of checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from testkit.counting_runs import config
from transformers import AutoModelForCausalLM

from agentgym.errors import ConfigError, CorruptDataError, UsageError
from agentgym.trainers.checkpoint import checkpoints_of
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.export import export_checkpoint
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.model import add_lora, load_model, save_model
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.trainers.train import train

LORA = LoraSettings(rank=2, alpha=4, target_modules=("q_proj", "down_proj"))
TOKENIZER = train_tokenizer(["Count to 2. Count to 3. add: 1 The count is 1."] * 5, 300)


def run_config(path: Path, lora: LoraSettings = LORA) -> TrainConfig:
    model = ModelConfig(path=str(path), codec="compact", max_context_tokens=160, lora=lora)
    sft = SftConfig(num_demos=16, batch_size=8, checkpoint_every=1, num_epochs=1)
    return config(num_steps=0, model=model, sft=sft, eval=EvalConfig(num_episodes=2))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained adapters a little; its model is in the folder ``base`` beside it."""
    root = tmp_path_factory.mktemp("adapters")
    made: Any = build_model(TOKENIZER, ModelConfig(hidden_size=64, num_layers=2, head_dim=32), 0)
    save_model(made, TOKENIZER, root / "base")
    train(run_config(root / "base"), root / "run")
    return root / "run"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(20, 40)[None]).logits
    return found


def test_a_run_saves_its_adapters_for_peft(trained: Path) -> None:
    base: Any = AutoModelForCausalLM.from_pretrained(trained.parent / "base", dtype=torch.float32)
    before = logits(base)
    adapted: Any = PeftModel.from_pretrained(base, str(trained / "adapters"))
    merged, _ = load_model(trained)
    assert not torch.allclose(logits(adapted), before, atol=1e-5)
    torch.testing.assert_close(logits(adapted), logits(merged), atol=1e-4, rtol=0)


def test_adapters_are_a_model(trained: Path) -> None:
    merged, plain = load_model(trained / "adapters")[0], load_model(trained)[0]
    torch.testing.assert_close(logits(merged), logits(plain), atol=1e-5, rtol=0)


def test_adapters_are_merged_again_when_they_change(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained / "adapters", tmp_path / "adapters")
    before = logits(load_model(folder)[0])
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({name: 2 * tensor for name, tensor in weights.items()}, folder / "adapter_model.safetensors")
    assert not torch.allclose(logits(load_model(folder)[0]), before, atol=1e-5)


def test_adapters_are_trained_further(trained: Path, tmp_path: Path) -> None:
    lora = replace(LORA, path=str(trained / "adapters"))
    adapted = add_lora(load_model(trained.parent / "base")[0], lora, seed=5)
    torch.testing.assert_close(logits(adapted), logits(load_model(trained)[0]), atol=1e-5, rtol=0)
    assert all(".lora_" in name for name, weight in adapted.named_parameters() if weight.requires_grad)
    train(run_config(trained.parent / "base", lora), tmp_path / "further")
    before = load_file(trained / "adapters" / "adapter_model.safetensors")
    after = load_file(tmp_path / "further" / "adapters" / "adapter_model.safetensors")
    moved = max(float((after[name] - tensor).abs().max()) for name, tensor in before.items())
    assert before.keys() == after.keys() and 0 < moved < 0.1, "a little more, and not from the beginning"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"r": 8}, r"differ from the configuration: set 'model\.lora\.rank=8'$"),
        ({"lora_alpha": 32}, r"set 'model\.lora\.alpha=32'$"),
        ({"target_modules": ["q_proj"]}, r"set 'model\.lora\.target_modules=\[\"q_proj\"\]'$"),
        ({"use_dora": True}, "cannot be continued here: use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
    ],
)
def test_other_adapters_are_not_trained_further(
    found: dict[str, Any], told: str, trained: Path, tmp_path: Path
) -> None:
    folder = copied(trained / "adapters", tmp_path / "adapters", **found)
    with pytest.raises(ConfigError, match=told):
        add_lora(load_model(trained.parent / "base")[0], replace(LORA, path=str(folder)), seed=0)


def test_adapters_of_another_model_are_refused(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained / "adapters", tmp_path / "adapters")
    weights = load_file(folder / "adapter_model.safetensors")
    lost = next(iter(weights))
    del weights[lost]
    save_file(weights, folder / "adapter_model.safetensors")
    for refuse in (
        lambda: load_model(folder),
        lambda: add_lora(load_model(trained.parent / "base")[0], replace(LORA, path=str(folder)), seed=0),
    ):
        with pytest.raises(CorruptDataError, match=r"are not those of .* is in one of both alone"):
            refuse()


def test_adapters_that_name_no_model_are_refused(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained / "adapters", tmp_path / "adapters", base_model_name_or_path=None)
    with pytest.raises(CorruptDataError, match="does not name the model that the adapters are for: set base_model_"):
        load_model(folder)


def test_adapters_of_adapters_are_refused(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained / "adapters", tmp_path / "adapters", base_model_name_or_path=str(tmp_path / "adapters"))
    with pytest.raises(CorruptDataError, match="which has adapters alone"):
        load_model(folder)


def test_a_folder_without_a_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.lora\.path: set model\.lora\.rank"):
        LoraSettings(path="adapters")


def test_the_model_of_a_checkpoint(trained: Path, tmp_path: Path, warm_agentgym: Any) -> None:
    out, written = tmp_path / "out", [path.name for path in checkpoints_of(trained)]
    done = warm_agentgym("model", "export", "--trust", "--json", str(trained), str(out))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["checkpoint"].endswith(written[-1])
    torch.testing.assert_close(logits(load_model(out)[0]), logits(load_model(trained)[0]))
    export_checkpoint(trained, tmp_path / "adapters", written[0], only_adapters=True)
    assert (tmp_path / "adapters" / "adapter_model.safetensors").is_file()
    for folder, name, told in ((tmp_path / "new", "rl-99", "has no checkpoint 'rl-99'; it has "), (out, "", "exists")):
        with pytest.raises(UsageError, match=told):
            export_checkpoint(trained, folder, name)


def copied(source: Path, folder: Path, **changes: Any) -> Path:
    """Copy a folder of adapters, with other values in its settings."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    settings = folder / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | changes))
    return folder
