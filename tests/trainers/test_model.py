"""Tokenizers trained on the spot, model folders, adapters."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym import make, train
from agentgym.api.policies import open_agents
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import ConfigError, CorruptDataError, EnvError, RunStoppedError, UsageError
from agentgym.evals.config import EvalConfig
from agentgym.render.chat import ChatRenderer
from agentgym.trainers.data.demos import collect_texts
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.model import add_lora, load_model, load_tokenizer, save_model
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.trainers.placement.policy import open_policy
from agentgym.types import Task

LLAMA: dict[str, Any] = {
    **{"vocab_size": 600, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 1},
}
SHAPE = ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=600, max_context_tokens=128)

LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 1\n"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    env = make("agentgym/Household-v0", num_receptacles=5, num_objects=5)
    texts, words = collect_texts(lambda: env, list(env.tasks("train")[:60]), seed=0)
    return train_tokenizer(texts, SHAPE.vocab_size, words)


@pytest.mark.parametrize("text", ["You arrive at cabinet 1. On the cabinet 1, you see nothing.", "naïve 東京 \x00 🙂"])
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_name_is_the_same_tokens_wherever_it_stands(tokenizer: Any) -> None:
    def pieces(text: str) -> list[str]:
        return [str(tokenizer.decode([i])) for i in tokenizer.encode(text, add_special_tokens=False)]

    assert pieces("go_to: cabinet 1")[-2:] == [" cabinet", " 1"]
    assert "pen" not in pieces("You open the cabinet 1. In it, you see a pen 1.")
    assert pieces("You arrive at cabinet 1")[-2:] == [" cabinet", " 1"]


def test_words_kept_apart_are_the_same_tokens_in_quotation_marks_brackets_and_actions() -> None:
    page = 'Click on "Next".\n\nbutton "previous" [previous]\nbutton "Next" [next-2]\nbutton "Next" [next-12]'
    tokenizer = train_tokenizer([page, "click: previous"] * 8, 400, splits="words")

    def pieces(text: str) -> list[str]:
        return [str(tokenizer.decode([i])) for i in tokenizer.encode(text, add_special_tokens=False)]

    assert pieces('button "previous" [previous]') == ["button", ' "', "previous", '" [', "previous", "]"]
    assert pieces("click: previous") == ["click", ": ", "previous"]
    assert pieces("[next-12]")[-3:] == ["1", "2", "]"]
    assert tokenizer.decode(tokenizer.encode(page, add_special_tokens=False)) == page


def test_what_the_infrastructure_spoils_is_played_again_and_changes_no_text() -> None:
    def kitchen() -> Env:
        return make("agentgym/Household-v0", num_receptacles=5, num_objects=5)

    tasks = list(kitchen().tasks("train")[:4])
    made: list[_Breaking] = []

    def make_env(num_good: int) -> Any:
        made.append(_Breaking(kitchen(), num_good if len(made) < 2 else 10**6))
        return made[-1]

    assert collect_texts(lambda: make_env(3), tasks, seed=0) == collect_texts(kitchen, tasks, seed=0)
    assert [one.is_closed for one in made] == [True, True, True]
    with pytest.raises(RunStoppedError, match=r"3 of 3 episodes failed, last task .*: EnvError: broken"):
        collect_texts(lambda: cast(Env, _Breaking(kitchen(), 0)), tasks[:3], seed=0, max_retries=1)


def test_an_environment_that_only_fails_is_given_up_early() -> None:
    def broken() -> Env:
        return cast(Env, _Breaking(make("agentgym/Household-v0", num_receptacles=5, num_objects=5), 0))

    played: list[str] = []

    def track(tasks: Sequence[Task]) -> Iterator[Task]:
        for task in tasks:
            played.append(task.id)
            yield task

    with pytest.raises(RunStoppedError, match=r"4 of 4 episodes failed, .*: EnvError: broken; agentgym check ENV"):
        collect_texts(broken, list(broken().tasks("train")[:50]), seed=0, track=track)
    assert len(played) == 4


def test_episodes_that_always_fail_are_left_out_of_the_texts_and_counted() -> None:
    def kitchen() -> Env:
        return make("agentgym/Household-v0", num_receptacles=5, num_objects=5)

    tasks = list(kitchen().tasks("train")[:5])

    class Spoilt(_Breaking):
        def reset(self, **named: Any) -> Any:
            if named["options"]["task"] == tasks[2]:
                raise TypeError("no kitchen")
            return self._env.reset(**named)

    said: list[str] = []
    texts, _ = collect_texts(lambda: cast(Env, Spoilt(kitchen(), 10**6)), tasks, seed=0, say=said.append)
    first_said, last_said = said
    assert first_said.startswith(f"note: an episode failed while texts were collected, task {tasks[2].id}: no kitchen")
    assert f"1 of 5 episodes failed, last task {tasks[2].id}: TypeError: no kitchen; agentgym check" in last_said
    first, _ = collect_texts(kitchen, tasks[:2], seed=0)
    whole, _ = collect_texts(kitchen, tasks, seed=0)
    assert texts[: len(first)] == first and len(first) < len(texts) < len(whole)


class _Breaking:
    """An environment that breaks after some steps."""

    def __init__(self, env: Env, num_good: int) -> None:
        self._env, self._num_left, self.is_closed = env, num_good, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: Any) -> Any:
        self._num_left -= 1
        if self._num_left < 0:
            raise EnvError("broken")
        return self._env.step(action)

    def close(self) -> None:
        self.is_closed = True


def test_the_tokenizer_and_the_weights_are_functions_of_the_seed(tokenizer: Any) -> None:
    state = torch.get_rng_state()
    first, second = build_model(tokenizer, SHAPE, 7), build_model(tokenizer, SHAPE, 7)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left as it was"
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_saved_model_samples_what_the_trained_one_did(tokenizer: Any, tmp_path: Path) -> None:
    model = add_lora(build_model(tokenizer, SHAPE, 1), LoraSettings(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    save_model(model, tokenizer, tmp_path / "model")
    files = (tmp_path / "model" / name for name in ("config.json", "model.safetensors"))
    assert len({file.stat().st_mode for file in files}) == 1, "whoever may read the folder may read the weights"
    assert hasattr(model, "merge_and_unload"), "the model in training keeps its adapters"
    params = SamplingParams(max_new_tokens=20, seed=3)
    reloaded = open_policy(tmp_path / "model", num_slots=1).engine
    trained = TorchEngine(model, num_slots=1, max_context_tokens=128)
    assert asyncio.run(reloaded.generate([5, 6, 7], params)).token_ids == (
        asyncio.run(trained.generate([5, 6, 7], params)).token_ids
    )


def test_lora_trains_adapters_alone(tokenizer: Any) -> None:
    model = add_lora(build_model(tokenizer, SHAPE, 1), LoraSettings(rank=2), seed=0)
    assert all("lora_" in name for name, p in model.named_parameters() if p.requires_grad)


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens"])
def test_adapters_of_a_matrix_that_two_layers_share_are_refused(name: str) -> None:
    """When they are merged, they would be added to both."""
    tied, apart = (LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=are_tied)) for are_tied in (True, False))
    settings = LoraSettings(rank=2, target_modules=("q_proj", name))
    with pytest.raises(ConfigError, match=f"one matrix for embed_tokens and lm_head.*leave out {name}"):
        add_lora(cast(Any, tied), settings, seed=0)
    add_lora(cast(Any, apart), settings, seed=0)


def test_a_tokenizer_of_another_model_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    save_model(build_model(tokenizer, SHAPE, 1), tokenizer, tmp_path / "model")
    larger = copy.deepcopy(tokenizer)
    larger.add_special_tokens({"eos_token": "<|far|>"})
    larger.save_pretrained(tmp_path / "model")
    end, known = larger.eos_token_id, len(tokenizer) - 1
    with pytest.raises(
        CorruptDataError, match=f"its end token has the id {end}, and the model knows ids up to {known};"
    ):
        load_model(tmp_path / "model")


def test_a_tokenizer_with_more_tokens_than_the_model_knows_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    """Its end token may be one that the model knows: episodes failed at the first token beyond."""
    model: Any = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": tokenizer.vocab_size - 1}))
    save_model(model, tokenizer, tmp_path / "model")
    with pytest.raises(CorruptDataError, match=f"it has {tokenizer.vocab_size} tokens, and the model knows ids up to"):
        load_model(tmp_path / "model")


@pytest.fixture
def reports() -> Iterator[list[str]]:
    """Return what transformers logs about the tensors of models that are loaded."""
    found: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("transformers.modeling_utils")
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def test_a_folder_that_lacks_tensors_is_not_filled_at_random(
    tokenizer: Any, tmp_path: Path, reports: list[str]
) -> None:
    model: Any = LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=False))
    save_model(model, tokenizer, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    del weights["lm_head.weight"], weights["model.layers.0.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CorruptDataError, match=r"lacks 2 of its tensors: lm_head.weight, model.layers.0.mlp.down_proj"):
        load_model(tmp_path / "model")
    assert reports == []


def test_a_tensor_of_another_shape_is_refused(tokenizer: Any, tmp_path: Path, reports: list[str]) -> None:
    model: Any = LlamaForCausalLM(LlamaConfig(**LLAMA))
    save_model(model, tokenizer, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"][:5].clone()
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        CorruptDataError, match=r"than its config.json says: model.norm.weight is \[5\] in place of \[32\]"
    ):
        load_model(tmp_path / "model")
    assert reports == []


def test_an_earlier_model_is_there_until_the_new_one_is(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, is_whole, remove = tmp_path / "model", [], shutil.rmtree
    save_model(build_model(tokenizer, SHAPE, 1), tokenizer, folder)

    def watched(path: Path, **options: Any) -> None:
        if path.exists():
            is_whole.append((folder / "config.json").is_file())
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", watched)
    save_model(build_model(tokenizer, SHAPE, 2), tokenizer, folder)
    assert is_whole == [True] and [path.name for path in tmp_path.iterdir()] == ["model"]


def test_all_end_tokens_of_a_model_end_its_turns(tokenizer: Any, tmp_path: Path) -> None:
    """Many models name more than their tokenizer does."""
    model = build_model(tokenizer, SHAPE, 0)
    further = int(tokenizer.encode("a", add_special_tokens=False)[0])
    own = renderer_of(model, tokenizer, tmp_path / "plain")
    model.generation_config.eos_token_id = [own.turn_end_ids[0], further]
    renderer = renderer_of(model, tokenizer, tmp_path / "more")
    assert renderer.turn_end_ids == (*own.turn_end_ids, further)
    for made in (renderer, pickle.loads(pickle.dumps(renderer)), renderer.in_style(renderer.config)):
        ids = [*tokenizer.encode("hello", add_special_tokens=False), further]
        assert made.turn_end_ids == renderer.turn_end_ids and made.read(ids, ()).text == "hello"


def renderer_of(model: Any, tokenizer: Any, folder: Path) -> ChatRenderer:
    """Return the renderer of a model that was saved."""
    save_model(model, tokenizer, folder)
    policy = open_policy(str(folder), num_slots=1)
    asyncio.run(policy.engine.close())
    return policy.renderer


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model at"):
        load_model(tmp_path / "nowhere")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a model folder: it has no config\.json"):
        load_model(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CorruptDataError, match=r"does not name the model that the adapters are for"):
        load_model(tmp_path)


def test_a_damaged_model(tokenizer: Any, tmp_path: Path) -> None:
    save_model(build_model(tokenizer, SHAPE, 1), tokenizer, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CorruptDataError, match="cannot be loaded"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_clone_without_large_files(name: str, tokenizer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(build_model(tokenizer, SHAPE, 1), tokenizer, folder)
    (folder / name).write_text(LFS_POINTER)
    for load in (load_model,) if name == "model.safetensors" else (load_model, load_tokenizer):
        with pytest.raises(UsageError, match=f"{name} is a Git LFS pointer .*run `git lfs pull` in {folder}"):
            load(folder)
    (tmp_path / "model.gguf").write_text(LFS_POINTER)
    with pytest.raises(CorruptDataError, match=f"model.gguf is a Git LFS pointer .*run `git lfs pull` in {tmp_path}"):
        load_model(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("tokenizer.json", "{}", "tokenizer.json is damaged: it lacks added_tokens, model"),
        ("tokenizer.json", '{"model": ', "tokenizer.json is damaged: Expecting value"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json is damaged: expected a JSON object"),
    ],
)
def test_a_damaged_file_of_a_tokenizer_is_named(
    name: str, text: str, told: str, tokenizer: Any, tmp_path: Path
) -> None:
    save_model(build_model(tokenizer, SHAPE, 1), tokenizer, tmp_path / "model")
    (tmp_path / "model" / name).write_text(text)
    for load in (load_model, load_tokenizer):
        with pytest.raises(UsageError, match=told):
            load(tmp_path / "model")


async def opened_and_closed(policy: str, plan: EvalConfig, notes: list[str]) -> None:
    _, close = await open_agents(policy, plan, 1, notes.append)
    await close()


def test_a_context_beyond_rotary_positions_is_noted_in_an_evaluation(tokenizer: Any, tmp_path: Path) -> None:
    save_model(build_model(tokenizer, SHAPE, 1), tokenizer, tmp_path / "model")
    notes: list[str] = []
    for longest in (128, 256):
        plan = EvalConfig(max_context_tokens=longest)
        asyncio.run(opened_and_closed(str(tmp_path / "model"), plan, notes))
    (note,) = [note for note in notes if "positions" in note]
    assert "the model has positions for 128 tokens, and model.max_context_tokens is 256" in note


@pytest.mark.parametrize("is_named", [True, False])
def test_a_model_without_a_tokenizer(is_named: bool, tokenizer: Any, tmp_path: Path) -> None:
    """Without tokenizer_config.json, transformers makes a tokenizer by the model's family, of one token."""
    save_model(build_model(tokenizer, SHAPE, 1), tokenizer, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    if not is_named:
        (tmp_path / "model" / "tokenizer_config.json").unlink()
    for load in (load_model, load_tokenizer):
        with pytest.raises(CorruptDataError, match=r"model has no tokenizer; copy tokenizer\.json"):
            load(tmp_path / "model")


def test_a_model_without_a_chat_template(tokenizer: Any, tmp_path: Path) -> None:
    save_model(build_model(tokenizer, SHAPE, 1), tokenizer, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    with pytest.raises(UsageError, match="no chat template"):
        open_policy(tmp_path / "model", num_slots=1)


def test_a_run_renders_its_prompts_before_it_reads_the_weights(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(build_model(tokenizer, SHAPE, 1), tokenizer, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    monkeypatch.setattr("agentgym.trainers.run.model.load_model", pytest.fail)
    changes = {"env.id": "agentgym/Maze-v0", "model.path": str(tmp_path / "model"), "model.max_context_tokens": 128}
    with pytest.raises(UsageError, match="no chat template"):
        train("finetune", changes, run_dir=tmp_path / "run")
