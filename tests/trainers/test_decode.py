"""Steps of fixed shape, without the graphs a GPU would make of them, against a plain forward."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit import TESTKIT
from testkit.engine_plays import TOLERANCE, full_logprobs, generate, play, play_all, prompt, run
from testkit.fake_cuda import FakeGraphs
from testkit.tiny_models import FAMILIES, tiny_model
from torch._dynamo.utils import counters
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import PreTrainedModel

from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError, EngineError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.engines.torch import layers, runner, weights
from agentgym.trainers.engines.torch.decode import FixedDecoder, size_class
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.torch.forward import Chunk, KVCache
from agentgym.trainers.engines.torch.weights import read_weights, refresh
from agentgym.trainers.placement.build import note_of
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train


def fixed(model: PreTrainedModel, *, num_slots: int = 8, **options: Any) -> TorchEngine:
    return TorchEngine(model, num_slots=num_slots, max_context_tokens=300, fixed_decode=True, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_sessions_equal_a_full_forward(family: str) -> None:
    model = tiny_model(family)
    run(play_all(fixed(model), model))


@pytest.mark.parametrize("max_prefill_tokens", [1, 3, 17])
def test_prompts_read_in_pieces(max_prefill_tokens: int) -> None:
    model = tiny_model()
    run(play_all(fixed(model, num_slots=3, max_prefill_tokens=max_prefill_tokens), model, num_turns=2))


def test_rows_in_vain_disturb_no_idle_session() -> None:
    """Sessions that wait keep what is in their slots while others are decoded around them."""
    model = tiny_model()
    engine = fixed(model, num_slots=16)

    async def scenario() -> None:
        await asyncio.gather(*(play(engine, model, n, num_turns=1) for n in range(10)))
        read_before = engine.stats.num_prefill_tokens
        for number in range(10, 14):
            await play(engine, model, number, num_turns=1)
        assert engine.stats.num_evictions == 0
        assert engine.stats.num_prefill_tokens > read_before

    run(scenario())
    ids = prompt(3, 40)
    first = generate(engine, ids, session_id="kept", max_new_tokens=4)
    generate(engine, prompt(4, 40), session_id="other", max_new_tokens=30)
    reused = engine.stats.num_reused_tokens
    ids = [*ids, *first.token_ids, 5]
    second = generate(engine, ids, session_id="kept", max_new_tokens=6)
    assert engine.stats.num_reused_tokens == reused + 43
    assert second.logprobs == pytest.approx(full_logprobs(model, ids, second, SamplingParams()), abs=TOLERANCE)


def test_the_same_tokens_as_ragged_steps() -> None:
    model = tiny_model()
    ragged = TorchEngine(model, num_slots=4, max_context_tokens=300)
    for seed in range(4):
        ids = prompt(seed, 150)  # crosses from one size of what is attended to the next
        one, other = (generate(engine, ids, max_new_tokens=120, seed=seed) for engine in (fixed(model), ragged))
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=TOLERANCE)


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, TOLERANCE), (torch.bfloat16, 0.5)])
def test_new_weights_take_the_place_of_the_old(dtype: torch.dtype | None, tolerance: float) -> None:
    model = tiny_model()
    engine = TorchEngine(model, num_slots=2, max_context_tokens=128, fixed_decode=True, dtype=dtype)
    ids = prompt(1, 20)
    old = generate(engine, ids, max_new_tokens=8)
    with torch.no_grad():
        vector_to_parameters(parameters_to_vector(model.parameters()) * 1.3, model.parameters())
    run(engine.update_weights(1))
    new = generate(engine, ids, max_new_tokens=8)
    assert new.logprobs != pytest.approx(old.logprobs, abs=TOLERANCE)
    assert new.logprobs == pytest.approx(full_logprobs(model, ids, new, SamplingParams()), abs=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_layers_sample_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's own passes on a CPU, without a C compiler; ``benchmarks/gpu/check.py`` compiles on a GPU."""
    monkeypatch.setattr(runner, "compiled_steps", lambda: layers.compiled_steps("aot_eager"))
    model = tiny_model(family)
    engine = fixed(model, compile_layers=True)
    assert engine.compile_error == ""
    counters.clear()
    run(play_all(engine, model))
    smallest = fixed(model, num_slots=1, compile_layers=True)
    run(play_all(smallest, model, num_turns=1))
    assert not counters["frames"]  # nothing was compiled again for other numbers of rows and slots


def test_layers_that_cannot_be_compiled_are_plain_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*given: Any) -> Any:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable")

    broken = layers.LayerSteps(no_compiler, no_compiler, layers.PLAIN.rotation)
    monkeypatch.setattr(runner, "compiled_steps", lambda: broken)
    model = tiny_model()
    engine = fixed(model, compile_layers=True)
    assert note_of(engine, model) == (
        "note: the engine's layers cannot be compiled here, so it samples more slowly "
        "(RuntimeError: Failed to find C compiler.); engine.compile=false does not try"
    )
    run(play_all(engine, model, num_turns=1))


@pytest.mark.parametrize(
    ("options", "setting"), [({"fixed_decode": True}, "decode=fixed"), ({"compile_layers": True}, "compile=true")]
)
def test_transformers_forward_has_neither_fixed_steps_nor_compiled_layers(options: Any, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"engine.{setting} needs the engine's own forward pass: leave it out"):
        TorchEngine(tiny_model(), forward="transformers", **options)


def test_addresses_stay_where_a_graph_would_look() -> None:
    model = tiny_model()
    before = read_weights(model, 64, torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after, has_moved = refresh(before, model)
    assert not has_moved
    assert after.layers[0].qkv.data_ptr() == before.layers[0].qkv.data_ptr()
    torch.testing.assert_close(after.layers[0].qkv, read_weights(model, 64, torch.bfloat16).layers[0].qkv)
    torch.testing.assert_close(after.embedding, model.get_input_embeddings().weight.to(torch.bfloat16))


def test_moved_parameters_are_noticed() -> None:
    model: Any = tiny_model()
    before = read_weights(model, 64)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    after, has_moved = refresh(before, model)
    assert has_moved
    assert after.embedding.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert after.layers[0].qkv.data_ptr() == before.layers[0].qkv.data_ptr(), "what is fused stays in its own memory"


def test_an_update_holds_one_layer_beside_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    held = read_weights(model, 64, torch.bfloat16)
    made: list[weakref.ref[torch.Tensor]] = []
    read = weights._read_layer

    def counted(*args: Any) -> Any:
        assert all(ref() is None for ref in made), "the layer before is still there"
        layer: Any = read(*args)
        made.extend(weakref.ref(tensor) for tensor in (layer.qkv, layer.gate_up))
        return layer

    monkeypatch.setattr(weights, "_read_layer", counted)
    refresh(held, model)
    assert len(made) == 2 * len(held.layers) > 2


def test_an_update_that_fails_half_way_serves_nothing_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    engine = fixed(model)
    old = generate(engine, prompt(1, 20), max_new_tokens=4)
    read, calls = weights._read_layer, iter(range(100))

    def fails_once(*args: Any) -> Any:
        if next(calls) == 1:
            raise RuntimeError("out of memory")
        return read(*args)

    monkeypatch.setattr(weights, "_read_layer", fails_once)
    with pytest.raises(EngineError, match="out of memory"):
        run(engine.update_weights(1))
    with pytest.raises(EngineError, match="could not be read; call update_weights again"):
        generate(engine, prompt(1, 20), max_new_tokens=4)
    run(engine.update_weights(1))
    assert generate(engine, prompt(1, 20), max_new_tokens=4).token_ids == old.token_ids


def test_another_dtype_shares_nothing_and_ties_what_was_tied() -> None:
    model: Any = tiny_model()
    weights = read_weights(model, 64, torch.bfloat16)
    tied = model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()
    assert (weights.embedding.data_ptr() == weights.head.data_ptr()) == tied
    assert weights.shared == ()
    assert {weights.norm.dtype, weights.head.dtype, weights.layers[0].gate_up.dtype} == {torch.bfloat16}
    assert weights.rotation.dtype == torch.complex64


def test_bfloat16_beside_a_float32_model() -> None:
    model = tiny_model()
    engine = TorchEngine(model, num_slots=4, max_context_tokens=128, dtype=torch.bfloat16, fixed_decode=True)
    ids = prompt(1, 20)
    completion = generate(engine, ids, max_new_tokens=10)
    expected = full_logprobs(model, ids, completion, SamplingParams())
    assert completion.logprobs == pytest.approx(expected, abs=0.5)
    assert completion.logprobs != pytest.approx(expected, abs=1e-6), "it computed in float32"


def test_few_shapes() -> None:
    """Sizes are rounded up, so that a run meets few of them: each is a recording on a GPU."""
    sizes = {
        (size_class(rows, 1, 64), size_class(attended, 128, 1000))
        for rows in range(1, 65)
        for attended in range(1, 1001)
    }
    assert len(sizes) == 7 * 4
    assert all(size_class(n, 1, 48) >= n for n in range(1, 49))


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [(["engine.decode=fixed"], 0.0, 1e-4), (["engine.decode=fixed", "engine.dtype=bfloat16"], 1e-4, 0.5)],
)
def test_a_run_trains_with_it(settings: list[str], least: float, most: float, tmp_path: Path) -> None:
    """The gap between sampled and trained log-probabilities is that of rounding, and new weights are taken over."""
    small = ["model.hidden_size=32", "model.num_layers=1", "model.vocab_size=320", "model.max_context_tokens=160"]
    short = [
        "sft.num_demos=320",
        "sft.num_epochs=2",
        "sft.batch_size=8",
        "num_steps=3",
        "groups_per_step=2",
        "eval.num_episodes=2",
    ]
    env = f"env.id={TESTKIT / 'counting_env.py'}:Counting-v0"
    train(apply_overrides(load_recipe("tiny"), [env, *small, *short, *settings]), tmp_path / "run")
    steps = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(steps) == 3
    assert least <= max(row["logprob_gap_max"] for row in steps) < most


def test_graphs_are_recorded_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pool and one stream for all shapes; a thread that trains meanwhile does not end a recording."""
    held = read_weights(tiny_model(), 300)
    cache = KVCache(held.shape, max_slots=6, max_tokens=300, device=torch.device("cpu"), dtype=torch.float32)
    cache.reserve(6, 300)
    made = FakeGraphs().install(monkeypatch)
    decoder = FixedDecoder(cache, first_slot=1, num_slots=4, spare_slot=5, use_graphs=True)
    decoder.prepare(held)
    assert decoder.shapes == [(rows, attended) for rows in (4, 2, 1) for attended in (300, 256, 128)]
    assert len(made.recorded) == 9
    assert made.recorded == [{"pool": "pool", "stream": made.streams[0], "capture_error_mode": "thread_local"}] * 9
    assert len(made.streams) == 1
    assert not cache.keys[:, 1:5].any(), "recording writes to the spare slot alone"
    with torch.inference_mode():
        decoder.logits(held, [Chunk(2, 0, [7]), Chunk(3, 0, [8])])
    assert (len(made.recorded), made.num_replays) == (9, 1)
    decoder.prepare(held)
    assert len(made.recorded) == 18, "new addresses, new graphs"
