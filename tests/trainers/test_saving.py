"""What a run does at its end is tried at its start, and the saved folder says how the model is asked."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.architectures import model_of
from testkit.counting_runs import config
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from agentgym.errors import ConfigError, CorruptDataError, EnvError
from agentgym.render.chat import ChatRenderer
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.model import add_lora, save_model
from agentgym.trainers.models.rehearsal import prepare_saving
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.trainers.placement.policy import open_policy
from agentgym.trainers.train import train

TOKENIZER = train_tokenizer(["Count to 2. Count to 3. add: 1 The count is 1."] * 5, 300)


def folder_with(path: Path, **generation: Any) -> Path:
    """Write a small model whose generation settings have these values."""
    model: Any = build_model(TOKENIZER, ModelConfig(hidden_size=32, num_layers=1, head_dim=16), 0)
    save_model(model, TOKENIZER, path)
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def short_run(path: Path, **model: Any) -> TrainConfig:
    of_model = ModelConfig(path=str(path), codec="compact", max_context_tokens=160, **model)
    return config(
        num_steps=0, model=of_model, sft=SftConfig(num_demos=8, batch_size=8), eval=EvalConfig(num_episodes=2)
    )


def saved_settings(run_dir: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run_dir / "model" / "generation_config.json").read_text())
    return values


def test_settings_that_transformers_does_not_save_are_mended(tmp_path: Path) -> None:
    """A temperature beside do_sample=false, which releases up to 5.22 refuse when the trained model is saved."""
    path = folder_with(tmp_path / "base", do_sample=False, temperature=0.6, top_p=0.9, eos_token_id=2)
    train(short_run(path), tmp_path / "run")
    saved = saved_settings(tmp_path / "run")
    assert (saved["do_sample"], saved["temperature"]) == (True, 0.6)
    GenerationConfig.from_pretrained(tmp_path / "run" / "model").validate(strict=True)


@pytest.mark.parametrize("lora", [LoraSettings(), LoraSettings(rank=2)])
def test_a_saved_model_ends_where_its_turns_end(lora: LoraSettings, tmp_path: Path) -> None:
    """A base model's files name another token alone."""
    path = folder_with(tmp_path / "base", eos_token_id=0)
    train(short_run(path, lora=lora), tmp_path / "run")
    ends = saved_settings(tmp_path / "run")["eos_token_id"]
    assert ends[-1] == 0 and ends[0] in ChatRenderer(TOKENIZER).turn_end_ids
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert read.generation_config.eos_token_id == ends


@pytest.mark.parametrize("lora", [LoraSettings(), LoraSettings(rank=2)])
def test_a_model_that_cannot_be_saved_is_refused_before_it_is_trained(
    lora: LoraSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise ValueError("the configuration is invalid")

    path = folder_with(tmp_path / "base", eos_token_id=2)
    monkeypatch.setattr("transformers.PreTrainedConfig.save_pretrained", refuse)
    with pytest.raises(ConfigError, match=r"could not be saved after training \(ValueError: the configuration is inv"):
        train(short_run(path, lora=lora), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_adapters_that_cannot_be_merged_are_found_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    adapted: Any = add_lora(model_of("phi3"), LoraSettings(rank=2, target_modules=("qkv_proj",)), seed=0)
    before = {name: weight.clone() for name, weight in adapted.named_parameters()}
    prepare_saving(adapted, TOKENIZER)
    assert all(torch.equal(weight, before[name]) for name, weight in adapted.named_parameters())
    monkeypatch.setattr("peft.tuners.lora.layer.Linear.merge", lambda *given, **options: 1 / 0)
    with pytest.raises(ConfigError, match=r"could not be saved after training \(ZeroDivisionError"):
        prepare_saving(adapted, TOKENIZER)


def test_a_card_shows_a_prompt_as_it_was_trained(tmp_path: Path) -> None:
    path = folder_with(tmp_path / "base", eos_token_id=2)
    train(short_run(path, tools_style="compact"), tmp_path / "run")
    folder = tmp_path / "run" / "model"
    card = (folder / "README.md").read_text()
    shown = card.split("~~~~text\n")[1].split("\n~~~~")[0]
    renderer, tokenizer = open_policy(folder, num_slots=1).renderer, AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode(shown, add_special_tokens=False)
    assert renderer.text_of(ids) == shown and "Count to" in shown
    assert "the style `compact`" in card and "the format `compact`" in card


def test_an_environment_that_fails_at_the_end_loses_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> object:
        raise EnvError("the server is gone")

    monkeypatch.setattr("agentgym.trainers.run.env.RunEnv.first_observation", fail)
    train(short_run(folder_with(tmp_path / "base", eos_token_id=2)), tmp_path / "run")
    assert (
        "(the environment failed when the model was saved: the server is gone)"
        in (tmp_path / "run" / "model" / "README.md").read_text()
    )


def with_token(path: Path, text: str, *, is_special: bool, is_in_template: bool) -> Path:
    """Write a model whose tokenizer has an added token that the model has no row for."""
    folder_with(path, eos_token_id=2)
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.add_tokens([text], special_tokens=is_special)
    if is_in_template:
        tokenizer.chat_template = text + str(tokenizer.chat_template)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize(("text", "is_template"), [("<|user_begin|>", True), ("Counter", False)])
@pytest.mark.parametrize("num_steps", [0, 1])
def test_tokens_that_prompts_can_hold_have_rows(text: str, is_template: bool, num_steps: int, tmp_path: Path) -> None:
    path = with_token(tmp_path / "base", text, is_special=is_template, is_in_template=is_template)
    beyond = rf"{re.escape(text)} has the id {len(TOKENIZER)}, .* ids up to {len(TOKENIZER) - 1}\. Add rows by"
    for refuse in (
        lambda: train(replace(short_run(path), num_steps=num_steps), tmp_path / "run"),
        lambda: open_policy(path, num_slots=1, chat={"codec": "compact"}),
    ):
        with pytest.raises(CorruptDataError, match=beyond):
            refuse()
    assert not (tmp_path / "run").exists()


def test_special_tokens_that_no_prompt_holds_may_lie_beyond(tmp_path: Path) -> None:
    """Gemma 3's tokenizer has a token for images that its text models have no row for."""
    path = with_token(tmp_path / "base", "<image>", is_special=True, is_in_template=False)
    open_policy(path, num_slots=1, chat={"codec": "compact"})
