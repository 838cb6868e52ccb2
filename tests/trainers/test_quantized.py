"""QLoRA: adapters over weights of 4 bits, on the CPU."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit import TESTKIT
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.ranks import forked

from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError, CorruptDataError, MissingExtraError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.model import add_lora, load_model, plain_model, save_model
from agentgym.trainers.models.quantized import check_same_tensors, dequantized, is_four_bit, kept_state
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.trainers.planning.dry_run import dry_run
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

ENV_FILE = TESTKIT / "counting_env.py"
QLORA = LoraSettings(rank=4, quantize="nf4")
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs the extra qlora"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of random weights."""
    path = tmp_path_factory.mktemp("models") / "base"
    tokenizer = train_tokenizer(["Count to 2. Count to 3. add: 1 The count is 1."] * 5, 300)
    sizes = ModelConfig(hidden_size=64, num_layers=2, head_dim=32, max_context_tokens=160)
    save_model(build_model(tokenizer, sizes, 0), tokenizer, path)
    return path


def quantized_model(folder: Path) -> Any:
    return add_lora(load_model(folder, "nf4")[0], QLORA, seed=0)


def packed(model: Any) -> dict[str, torch.Tensor]:
    """The 4-bit weights, as they lie in memory."""
    return {name: module.weight.data.clone() for name, module in model.named_modules() if is_four_bit(module)}


def trained_a_little(model: Any) -> list[float]:
    """Losses of a few steps on one row."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    ids = torch.arange(20, 60)[None]
    losses = []
    for _ in range(8):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@needs_bitsandbytes
def test_adapters_learn_and_nothing_else_changes(folder: Path) -> None:
    model = quantized_model(folder)
    before = packed(model)
    assert len(before) == 2 * 7, "all matrices of the layers"
    assert all(tensor.dtype == torch.uint8 for tensor in before.values())
    with torch.no_grad():  # what would repack weights on some CPUs
        model(input_ids=torch.arange(9)[None])
    losses = trained_a_little(model)
    assert losses[-1] < 0.8 * losses[0]
    after = packed(model)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {name for name, p in model.named_parameters() if p.requires_grad} == set(kept_state(model))


@needs_bitsandbytes
def test_quantized_weights_are_near_the_models_own(folder: Path) -> None:
    exact, model = load_model(folder)[0], load_model(folder, "nf4")[0]
    for name, module in model.named_modules():
        if is_four_bit(module):
            weight: Any = exact.get_submodule(name).weight
            assert dequantized(module).shape == weight.shape
            error = (dequantized(module) - weight).norm() / weight.norm()
            assert 0.01 < error < 0.15, "4 bits, and no fewer"


@needs_bitsandbytes
def test_the_engine_samples_from_what_is_trained(folder: Path) -> None:
    model = quantized_model(folder)
    trained_a_little(model)
    engine = TorchEngine(model, num_slots=1, max_context_tokens=128)
    prompt = [5, 6, 7]
    said = asyncio.run(engine.generate(prompt, SamplingParams(max_new_tokens=12, seed=1)))
    ids = torch.tensor([[*prompt, *said.token_ids]])
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
    torch.testing.assert_close(
        logprobs.gather(-1, ids[0, len(prompt) :, None])[:, 0], torch.tensor(said.logprobs), atol=1e-4, rtol=0
    )


@needs_bitsandbytes
def test_a_saved_model_is_the_trained_one_in_floating_point(folder: Path, tmp_path: Path) -> None:
    model, (_, tokenizer) = quantized_model(folder), load_model(folder)
    trained_a_little(model)
    save_model(model, tokenizer, tmp_path / "model")
    saved = load_model(tmp_path / "model")[0]
    assert not any(is_four_bit(module) for module in saved.modules())
    ids = torch.arange(20, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(saved(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-4, rtol=0)
    assert any(is_four_bit(module) for module in model.modules()), "the model in training stays as it is"


@needs_bitsandbytes
def test_adapters_are_kept_and_put_back(folder: Path) -> None:
    model = quantized_model(folder)
    trained_a_little(model)
    state = copy.deepcopy(kept_state(model))
    assert all(".lora_" in name for name in state)
    again = quantized_model(folder)
    check_same_tensors(kept_state(again), state)
    again.load_state_dict(state, strict=False)
    ids = torch.arange(20, 40)[None]
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    with pytest.raises(CorruptDataError, match="weights or adapters"):
        check_same_tensors(kept_state(again), dict(list(state.items())[1:]))


def run_config(folder: Path, **changes: Any) -> TrainConfig:
    made = replace(
        apply_overrides(load_recipe("tiny"), [f"env.id={ENV_FILE}:Counting-v0"]),
        model=ModelConfig(path=str(folder), codec="compact", max_context_tokens=160, lora=QLORA),
        sft=SftConfig(num_demos=48, batch_size=8, num_epochs=1),
        num_steps=2,
        eval=EvalConfig(num_episodes=4),
        checkpoint_every=1,
    )
    return replace(made, **changes)


@needs_bitsandbytes
def test_a_run_trains_and_can_be_resumed(folder: Path, tmp_path: Path) -> None:
    config = apply_overrides(
        run_config(folder), ['loss.regularisers=[{"kind": "kl", "coef": 0.01}]', "zero_variance_filter=off"]
    )
    train(config, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2]
    assert max(row["logprob_gap_max"] for row in rows) < 1e-3
    whole = read_checkpoint(tmp_path / "run", 2)
    assert all(".lora_" in name for name in (*whole["model"], *whole["reference"]))
    drop_checkpoint(tmp_path / "run", 2)
    train(config, tmp_path / "run", resume=True)
    again = read_checkpoint(tmp_path / "run", 2)
    assert all(torch.equal(again["model"][name], tensor) for name, tensor in whole["model"].items())


@pytest.mark.slow
@needs_bitsandbytes
def test_two_ranks_train_adapters_over_four_bits_as_one_does(folder: Path, tmp_path: Path, warm_python: str) -> None:
    model = {"path": str(folder), "codec": "compact", "max_context_tokens": 160, "lora": asdict(QLORA)}
    settings = (
        *(f"env.id={ENV_FILE}:Counting-v0", f"model={json.dumps(model)}", "sft.num_demos=48", "sft.batch_size=8"),
        *("sft.mix.weight=0.5", 'loss.regularisers=[{"kind": "kl", "coef": 0.01}]', "num_steps=2"),
        *("loss.tokens_per_microbatch=128", "eval.num_episodes=4", "checkpoint_every=1"),
    )
    for num_ranks in (1, 2):
        run_dir = ("--run-dir", str(tmp_path / f"run{num_ranks}"))
        forked(warm_python, num_ranks, "-m", "agentgym", "train", "tiny", *settings, *run_dir)
    one, two = (read_checkpoint(tmp_path / f"run{num_ranks}", 2) for num_ranks in (1, 2))
    assert one["model"].keys() == two["model"].keys() and all(".lora_" in name for name in two["model"])
    for name, tensor in one["model"].items():
        torch.testing.assert_close(two["model"][name], tensor, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("model.path=", "a model from scratch"),
        ("pipeline.mode=async", r"pipeline\.mode=async"),
        ("credit.estimator=turn_gae", "a critic"),
    ],
)
def test_what_it_cannot_go_with_is_said(folder: Path, override: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"model.lora.quantize=nf4 cannot go with {reason}"):
        apply_overrides(run_config(folder), [override])


def test_adapters_for_servers_of_other_weights_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="servers put adapters on other weights: use folder"):
        apply_overrides(
            run_config(folder), ['engine={"kind": "vllm", "urls": ["http://127.0.0.1:8000"], "weight_sync": "lora"}']
        )


def test_four_bits_without_adapters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"set model\.lora\.rank"):
        LoraSettings(quantize="nf4")


def test_a_missing_library_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[qlora\]'"):
        load_model(folder, "nf4")


@needs_bitsandbytes
def test_a_dry_run_counts_the_bytes_that_there_are(folder: Path) -> None:
    model = quantized_model(folder)
    tensors = {id(p): p for p in model.parameters()}.values()
    scales = 0
    for module in model.modules():
        if is_four_bit(module):
            state = module.weight.quant_state
            scales += state.absmax.nbytes + state.state2.absmax.nbytes
    counted = dry_run(run_config(folder)).memory.weights
    assert counted == pytest.approx(sum(p.nbytes for p in tensors) + scales, rel=0.02)


def test_a_dry_run_of_a_published_model() -> None:
    base = load_recipe("alfworld-qwen2.5-7b")
    config = replace(base, model=replace(base.model, lora=replace(base.model.lora, quantize="nf4")))
    whole, small = dry_run(base).memory, dry_run(config).memory
    matrices = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944)
    assert whole.weights - small.weights == pytest.approx(matrices * (4 - 4.127 / 8), rel=1e-4)
    assert whole.gradients == small.gradients


def test_models_that_are_not_quantized_are_left_as_they_are(folder: Path) -> None:
    model = load_model(folder)[0]
    assert set(kept_state(model)) == {name for name, _ in model.named_parameters()}
    assert set(plain_model(model).state_dict()) == set(model.state_dict())
