"""The embedded engine and the trainer with architectures that the engine has no forward of its own for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from testkit.architectures import BATCHED, BY_NAME, ENCODERS, ROW_BY_ROW, model_of
from testkit.counting_runs import config
from testkit.engine_plays import TOLERANCE, full_logprobs, generate, play_all, prompt, run
from testkit.run_records import told
from testkit.tiny_models import tiny_model

from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError, EngineError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.data.fit import can_be_packed, can_share_prefixes
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.torch.any_model import AnyModelRunner
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.check import check_model
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.experts import num_experts
from agentgym.trainers.models.model import add_lora, save_model
from agentgym.trainers.models.precision import ATTENTION, use_fused_attention
from agentgym.trainers.models.tiny import train_tokenizer
from agentgym.trainers.placement.experts import check_experts
from agentgym.trainers.train import train

KINDS = {**dict.fromkeys(BATCHED, "batched"), **dict.fromkeys(ROW_BY_ROW, "row by row")}


# ------------------------------------------------------------------------------------------------------- the engine


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_concurrent_turns_equal_a_full_forward(kind: str) -> None:
    model = model_of(kind)
    engine = TorchEngine(model, num_slots=3, max_context_tokens=128)  # fewer than sessions: some are read again
    assert engine.forward_kind == KINDS[kind]
    run(play_all(engine, model))


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_it_equals_the_engines_own_forward(family: str) -> None:
    model = tiny_model(family)
    made = []
    for forward in ("own", "transformers"):
        engine = TorchEngine(model, num_slots=8, max_context_tokens=128, forward=forward)
        made.append(run(play_all(engine, model)))
    own, other = ([completion.token_ids for session in sessions for completion in session] for sessions in made)
    assert own == other


@pytest.mark.parametrize("kind", ["gemma3_text", "lfm2"])
def test_a_prompt_that_departs_from_what_is_kept(kind: str) -> None:
    model = model_of(kind)
    engine = TorchEngine(model, num_slots=2, max_context_tokens=128)
    params = SamplingParams(max_new_tokens=5, seed=1)
    ids = prompt(1, 20)

    async def scenario() -> None:
        await engine.generate(ids, params, session_id="s")
        for changed in ([*ids[:12], 3, 4, 5], ids[:7], [*ids[:7], *prompt(2, 30)]):
            said = await engine.generate(changed, params, session_id="s")
            assert said.logprobs == pytest.approx(full_logprobs(model, changed, said, params), abs=TOLERANCE)

    run(scenario())


@pytest.mark.parametrize("kind", ["phi3", "qwen3_5_text"])
def test_score_equals_a_full_forward(kind: str) -> None:
    model = model_of(kind)
    engine = TorchEngine(model, num_slots=2, max_context_tokens=128, max_prefill_tokens=7)
    ids, continuation = prompt(1, 23), prompt(2, 9)
    for _ in range(2):
        scores = run(engine.score(ids, continuation))
        with torch.no_grad():
            logprobs = model(torch.tensor([[*ids, *continuation]])).logits[0].log_softmax(-1)
        expected = [logprobs[len(ids) - 1 + at, token].item() for at, token in enumerate(continuation)]
        assert scores == pytest.approx(expected, abs=TOLERANCE)
        ids = [*ids, *continuation]


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_new_weights_are_taken_when_they_are_told(dtype: torch.dtype | None) -> None:
    model = model_of("gemma3_text")
    engine = TorchEngine(model, num_slots=2, max_context_tokens=64, dtype=dtype)
    before = generate(engine, prompt(1, 8), temperature=0.0, max_new_tokens=6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-0.7)
    if dtype is None:  # they are shared
        with pytest.raises(EngineError, match="call update_weights"):
            generate(engine, prompt(1, 8))
    run(engine.update_weights(1))
    after = generate(engine, prompt(1, 8), temperature=0.0, max_new_tokens=6)
    assert after.token_ids != before.token_ids and after.policy_versions == (1,) * 6
    expected = full_logprobs(model, prompt(1, 8), after, SamplingParams(temperature=0.0))
    assert after.logprobs == pytest.approx(expected, abs=TOLERANCE)


def test_adapters_are_sampled_from() -> None:
    model: Any = get_peft_model(model_of("phi3"), LoraConfig(r=4, target_modules=["qkv_proj"], init_lora_weights=False))
    run(play_all(TorchEngine(model, num_slots=4, max_context_tokens=128), model, num_sessions=2))


def test_a_forward_that_fails_leaves_an_empty_cache() -> None:
    """The cache could not be emptied, so the engine's task ended with an error that nobody read."""
    model = model_of("gemma3_text")
    engine: Any = TorchEngine(model, num_slots=2, max_context_tokens=64)
    generate(engine, prompt(1, 8))
    assert any(stored.any() for stored in engine._runner.cache._cache.stored())
    plain, model.forward = model.forward, Mock(side_effect=IndexError("index out of range in self"))
    with pytest.raises(EngineError, match="index out of range"):
        generate(engine, prompt(2, 8))
    assert not any(stored.any() for stored in engine._runner.cache._cache.stored())
    model.forward = plain
    assert len(generate(engine, prompt(2, 8), max_new_tokens=3).token_ids) == 3


def test_a_model_that_no_way_fits_is_refused_with_the_reasons() -> None:
    model = model_of("gemma")
    plain = model.forward

    def odd(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        if kwargs.get("use_cache"):
            made.logits = made.logits + 1e-2 * torch.arange(made.logits.shape[-1])
        return made

    model.forward = odd
    with pytest.raises(ConfigError, match=r"'gemma' \(batched: .*differ.*row by row: .*differ.*engine.kind=vllm"):
        AnyModelRunner(model, num_slots=2, max_context_tokens=32)


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_is_refused(kind: str) -> None:
    """transformers loads one as a causal language model that attends to later tokens."""
    model = model_of(kind)
    for refuse in (lambda: TorchEngine(model, num_slots=2, max_context_tokens=32), lambda: check_model(model)):
        with pytest.raises(ConfigError, match=f"'{kind}' is no causal language model, so it cannot act"):
            refuse()


def test_positions_that_change_with_the_length_are_refused() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    model = model_of("olmo2", rope_parameters=rope, max_position_embeddings=64)
    with pytest.raises(ConfigError, match="beyond 64 tokens"):
        TorchEngine(model, max_context_tokens=65)
    run(play_all(TorchEngine(model, num_slots=4, max_context_tokens=64), model, num_sessions=2, num_turns=2))


def test_fixed_shapes_are_the_own_forwards() -> None:
    with pytest.raises(ConfigError, match="gemma"):
        TorchEngine(model_of("gemma"), fixed_decode=True)
    with pytest.raises(ConfigError, match=r"decode=fixed"):
        TorchEngine(tiny_model(), fixed_decode=True, forward="transformers")
    with pytest.raises(ConfigError, match=r"engine.kind=torch"):
        EngineConfig(kind="vllm", urls=("http://127.0.0.1:8000",), forward="transformers")


# ------------------------------------------------------------------------------------------------------- the trainer


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainers_logits_are_the_models(kind: str) -> None:
    check_model(model_of(kind))


def test_a_model_with_damaged_weights_is_refused() -> None:
    model = model_of("gemma")
    with torch.no_grad():
        next(model.parameters())[:] = float("nan")
    with pytest.raises(ConfigError, match="gemma' cannot be trained: its logits are not finite"):
        check_model(model)


def test_a_model_whose_logits_are_made_otherwise_is_refused() -> None:
    model = model_of("gemma")
    plain = model.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        made.logits = made.logits * 2
        return made

    model.forward = scaled
    with pytest.raises(ConfigError, match=r"'gemma' cannot be trained here.*hidden states"):
        check_model(model)


@pytest.mark.parametrize(
    ("kind", "shares", "packs"),
    [
        ("phi3", True, True),
        ("qwen3_moe", True, True),
        ("bloom", True, False),
        ("mistral", False, False),
        ("gemma3_text", False, False),
        ("lfm2", False, False),
        ("qwen3_5_text", False, False),
    ],
)
def test_layouts_that_a_model_does_not_fit_are_left_out(kind: str, shares: bool, packs: bool) -> None:
    model = model_of(kind)
    assert (can_share_prefixes(model), can_be_packed(model)) == (shares, packs)


def folder_of(kind: str, path: Path) -> Path:
    """A model of a kind with a tokenizer of the counting environment's texts."""
    tokenizer = train_tokenizer(["Count to 2. Count to 3. add: 1 The count is 1."] * 5, 300)
    save_model(model_of(kind, vocab_size=len(tokenizer)), tokenizer, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma3_text", "phi3", "granite", "qwen3_5_text", "qwen3_moe"])
def test_a_run_trains_on_its_own_rollouts(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder_of(kind, tmp_path / "base")
    base = config(num_steps=2, model=ModelConfig(path=str(path), codec="compact", max_context_tokens=160))
    train(base, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert any(row["trained_tokens"] for row in rows) and told(tmp_path / "run")
    assert max(row["logprob_gap_max"] for row in rows) < 1e-4
    assert f"samples from {kind} by transformers' own forward" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["qwen3_moe", "glm4_moe", "gpt_oss", "deepseek_v3"])
def test_experts_are_trained_as_they_are_sampled_from_or_not_at_all(kind: str) -> None:
    model, cpu, gpu = model_of(kind), torch.device("cpu"), torch.device("cuda")
    assert num_experts(model) == 4
    plain = config()
    check_experts(model, plain, 1, cpu)
    exact = apply_overrides(plain, ["engine.dtype=float32", "loss.precision=float32"])
    check_experts(model, exact, 1, gpu)
    served = apply_overrides(exact, ["engine.kind=vllm", 'engine.urls=["http://127.0.0.1:1"]', "engine.dtype=auto"])
    for refused, num_ranks, device, why in (
        (plain, 1, gpu, "loss.precision=bfloat16; engine.dtype=bfloat16"),
        (plain, 2, cpu, "2 ranks, each of which would gather all experts"),
        (served, 1, cpu, "engine.kind=vllm"),
    ):
        with pytest.raises(ConfigError, match=f"{kind} is a mixture of 4 experts, and cannot be trained with {why}: "):
            check_experts(model, refused, num_ranks, device)


def test_dense_models_have_no_experts() -> None:
    assert num_experts(model_of("phi3")) == 0
    check_experts(model_of("phi3"), config(), 2, torch.device("cuda"))


def test_adapters_on_layers_that_a_model_lacks_are_refused_with_those_it_has() -> None:
    message = "phi3 has no q_proj, .*its linear layers are down_proj, gate_up_proj, o_proj, qkv_proj"
    with pytest.raises(ConfigError, match=message):
        add_lora(model_of("phi3"), LoraSettings(rank=4), seed=0)
    adapted = add_lora(model_of("phi3"), LoraSettings(rank=4, target_modules=("qkv_proj", "o_proj")), seed=0)
    assert sum(".lora_A." in name for name, _ in adapted.named_parameters()) == 2 * 4


@pytest.mark.parametrize("kind", [*BY_NAME, "granite"])
def test_our_attention_kernels_change_no_model(kind: str) -> None:
    """Some compute something else where torch's attention has another name."""
    model = model_of(kind)
    ids = torch.randint(3, 90, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(ids, use_cache=False).logits
        use_fused_attention(cast(Any, model))
        torch.testing.assert_close(model(ids, use_cache=False).logits, before)
    assert (model.config._attn_implementation == ATTENTION) == (kind not in BY_NAME)


def test_a_window_that_no_mask_shows_is_known() -> None:
    """GPT-Neo has it inside of its attention, where the short rows by which layouts are tried do not reach it."""
    model: Any = model_of("gpt_neo", window_size=200)
    assert not can_be_packed(model) and not can_share_prefixes(model)
    assert TorchEngine(model, num_slots=2, max_context_tokens=64).forward_kind == "row by row"
