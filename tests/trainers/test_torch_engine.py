from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from testkit.engine_plays import TOLERANCE, full_logits, full_logprobs, generate, play, play_all, prompt, run
from testkit.tiny_models import FAMILIES, VOCAB_SIZE, tiny_model
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from agentgym.engine import Engine, SamplingParams
from agentgym.errors import ClosedError, ConfigError, EngineError, UsageError
from agentgym.trainers.engines.torch import layers, runner, weights
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.torch.slots import MIN_SHARED_TOKENS
from agentgym.trainers.engines.torch.weights import read_weights
from agentgym.types import Completion, FinishReason


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """Shared by the tests that do not change weights."""
    return tiny_model()


# ------------------------------------------------------------------------------------------------------- parity


def test_it_is_an_engine(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, max_context_tokens=77, version=3)
    assert isinstance(engine, Engine)
    assert (engine.max_context_tokens, engine.policy_version) == (77, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_concurrent_turns_equal_a_full_forward(family: str) -> None:
    model = tiny_model(family)
    run(play_all(TorchEngine(model, num_slots=8, max_context_tokens=128), model))


@pytest.mark.parametrize("family", FAMILIES)
def test_few_rows_of_a_wide_model_equal_a_full_forward_also_after_an_update(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "MIN_WEIGHTS", 1)
    monkeypatch.setattr(weights, "WIDE", 1)
    products: list[int] = []
    few_rows = layers.few_rows

    def counted(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        products.append(len(x))
        return few_rows(x, matrix)

    monkeypatch.setattr(layers, "few_rows", counted)
    model = tiny_model(family)
    for num_slots in (1, 2, 3, 9):
        engine = TorchEngine(model, num_slots=num_slots, max_context_tokens=128)
        run(play_all(engine, model, num_turns=1))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.05)
        run(engine.update_weights(1))
        run(play_all(engine, model, num_turns=1))
        for layer in cast(Any, engine)._runner.weights.layers:
            assert layer.qkv.t().is_contiguous() and layer.gate_up.t().is_contiguous()
    assert {1, 2, 3} <= {*products} and max(products) <= 8


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("large", [1, 1 << 20])
def test_packed_matrices_equal_a_full_forward_also_after_an_update(
    family: str, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "has_faster_products", lambda: True)
    monkeypatch.setattr(weights, "LARGE", large)
    monkeypatch.setattr(layers, "MIN_PACKED_PRODUCTS", 1)
    model = tiny_model(family)
    engine = TorchEngine(model, num_slots=3, max_context_tokens=128)
    run(play_all(engine, model, num_turns=1))
    held = cast(Any, engine)._runner.weights
    places = [matrix.data_ptr() for matrix in (held.layers[0].out, held.head)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    run(engine.update_weights(1))
    run(play_all(engine, model, num_turns=1))
    renewed = cast(Any, engine)._runner.weights
    assert places == [matrix.data_ptr() for matrix in (renewed.layers[0].out, renewed.head)]
    for layer in renewed.layers:
        assert layer.packed.qkv.is_mkldnn and layer.packed.down.is_mkldnn
        assert (layer.qkv is layer.packed.qkv) == (layer.gate_up is layer.packed.gate_up) == (large == 1)
    assert renewed.packed_head is held.packed_head and renewed.packed_head.is_mkldnn


def test_small_products_leave_packed_matrices_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "has_faster_products", lambda: True)
    called: list[int] = []

    def product(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        called.append(len(x))
        raise AssertionError("a small product")

    monkeypatch.setattr(layers, "product", product)
    model = tiny_model()
    run(play_all(TorchEngine(model, num_slots=3, max_context_tokens=128), model, num_turns=1))
    assert not called


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no products of bfloat16 on this processor"
)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_matrices_in_bfloat16_score_as_plain_ones_also_after_an_update(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    made = {}
    for is_packed in (False, True):
        monkeypatch.setattr(weights, "multiplies_bfloat16", lambda made=is_packed: made)
        made[is_packed] = TorchEngine(model, max_context_tokens=128, dtype=torch.bfloat16)
    for version in (1, 2):
        plain, packed = (run(engine.score(prompt(1, 20), prompt(2, 9))) for engine in made.values())
        assert packed == pytest.approx(plain, abs=0.3), "only bfloat16's rounding"
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        for engine in made.values():
            run(engine.update_weights(version))
        assert run(made[True].score(prompt(1, 20), prompt(2, 9))) != packed
    for held in cast(Any, made[True])._runner.weights.layers:
        for name, matrix in held.packed._asdict().items():
            assert matrix.is_mkldnn and matrix.dtype is torch.bfloat16
            assert getattr(held, name) is matrix, "no second copy"


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_the_product_of_few_rows_is_the_product(num_rows: int) -> None:
    x, matrix = torch.randn(num_rows, 48, dtype=torch.float64), torch.randn(80, 48, dtype=torch.float64)
    made = layers.few_rows(x, matrix)
    torch.testing.assert_close(made, x @ matrix.t())
    assert made.is_contiguous() and made.shape == (num_rows, 80)


def test_ragged_additions_read_in_one_tick_equal_a_full_forward(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=8, max_context_tokens=128)
    params = SamplingParams(max_new_tokens=3, seed=1)

    async def one(number: int) -> None:
        ids = prompt(number, 9 + number)
        for turn in range(3):
            completion = await engine.generate(ids, params, session_id=str(number))
            assert completion.logprobs == pytest.approx(full_logprobs(model, ids, completion, params), abs=TOLERANCE)
            ids = [*ids, *completion.token_ids, *prompt(turn, 4 + (number + turn) % 4)]

    async def scenario() -> None:
        await asyncio.gather(*map(one, range(6)))

    run(scenario())
    assert engine.stats.num_ticks == 3 * 3


@pytest.mark.parametrize("max_prefill_tokens", [1, 3, 17])
def test_prompts_read_in_pieces_equal_a_full_forward(model: PreTrainedModel, max_prefill_tokens: int) -> None:
    engine = TorchEngine(model, num_slots=3, max_context_tokens=128, max_prefill_tokens=max_prefill_tokens)
    run(play_all(engine, model, num_turns=2))


def test_slots_with_gaps_between_them_equal_a_full_forward(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=16, max_context_tokens=128)

    async def scenario() -> None:
        await asyncio.gather(*(play(engine, model, n, num_turns=1) for n in range(10)))
        for gap in (1, 2, 4, 5, 6):
            await engine.generate(prompt(gap, 4), SamplingParams(max_new_tokens=1), session_id=f"kept-{gap}")
        await asyncio.gather(*(play(engine, model, n, num_turns=2) for n in range(9)))

    run(scenario())


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.6},
        {"temperature": 1.8, "top_k": 7},
        {"top_p": 0.7},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
        {"temperature": 0.0},
    ],
)
def test_logprobs_are_those_of_the_sampled_distribution(model: PreTrainedModel, sampling: dict[str, Any]) -> None:
    engine = TorchEngine(model, num_slots=4, max_context_tokens=128)
    run(play_all(engine, model, num_sessions=3, num_turns=2, **sampling))


def test_greedy_follows_the_peaks_of_a_full_forward(model: PreTrainedModel) -> None:
    ids = prompt(1, 9)
    completion = generate(TorchEngine(model), ids, temperature=0.0, max_new_tokens=12)
    peaks = full_logits(model, [*ids, *completion.token_ids]).argmax(dim=-1).tolist()
    assert list(completion.token_ids) == peaks[len(ids) - 1 : -1]


def test_scores_equal_a_full_forward(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, max_context_tokens=512, max_prefill_tokens=50)
    ids, continuation = prompt(1, 60), prompt(2, 330)
    logprobs = full_logits(model, ids + continuation).log_softmax(dim=-1)[len(ids) - 1 : -1]
    expected = logprobs[range(330), continuation].tolist()
    assert run(engine.score(ids, continuation)) == pytest.approx(expected, abs=TOLERANCE)
    assert run(engine.score(ids, continuation[:7])) == pytest.approx(expected[:7], abs=TOLERANCE)
    assert run(engine.score(ids, ())) == ()


def test_scoring_between_ticks_does_not_disturb_sampling(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=4, max_context_tokens=128)

    async def scenario() -> None:
        playing = asyncio.gather(*(play(engine, model, n) for n in range(4)))
        while not playing.done():
            await engine.score(prompt(1, 20), prompt(2, 5))
            await asyncio.sleep(0)
        await playing

    run(scenario())


def test_bfloat16_stays_near_its_full_forward() -> None:
    model = tiny_model().bfloat16()
    ids = prompt(1, 20)
    completion = generate(TorchEngine(model), ids, max_new_tokens=10)
    expected = full_logprobs(model, ids, completion, SamplingParams())
    assert completion.logprobs == pytest.approx(expected, abs=0.5)


# ------------------------------------------------------------------------------------------- sessions and slots


def test_a_session_forwards_only_what_is_new(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, max_context_tokens=128)
    ids = prompt(1, 30)
    first = generate(engine, ids, session_id="a", max_new_tokens=5)
    assert engine.stats.num_prefill_tokens == 30
    ids = [*ids, *first.token_ids, 7, 8, 9]
    generate(engine, ids, session_id="a", max_new_tokens=5)
    # the last sampled token was never an input before, so it is read with the three new ones
    assert engine.stats.num_prefill_tokens == 30 + 1 + 3
    assert engine.stats.num_reused_tokens == 30 + 4
    for _ in range(2):  # without a session nothing is kept
        generate(engine, prompt(2, 40), max_new_tokens=1)
    assert engine.stats.num_prefill_tokens == 34 + 2 * 40


def test_kept_tokens_do_not_change_the_result(model: PreTrainedModel) -> None:
    kept, fresh = (TorchEngine(model, max_context_tokens=128) for _ in range(2))
    ids = prompt(1, 30)
    for turn in range(3):
        with_memory = generate(kept, ids, session_id="a", max_new_tokens=6, seed=turn)
        without = generate(fresh, ids, max_new_tokens=6, seed=turn)
        assert with_memory.token_ids == without.token_ids
        assert with_memory.logprobs == pytest.approx(without.logprobs, abs=TOLERANCE)
        ids = [*ids, *with_memory.token_ids, turn]


@pytest.mark.parametrize(("num_common", "num_read"), [(12, 9), (0, 21), (20, 1), (30, 1)])
def test_a_departing_prompt_rolls_back_to_the_common_prefix(
    model: PreTrainedModel, num_common: int, num_read: int
) -> None:
    engine = TorchEngine(model, max_context_tokens=128)
    ids = prompt(1, 30)
    generate(engine, ids, session_id="a", max_new_tokens=5)
    departing = [*ids[:num_common], *((token + 1) % VOCAB_SIZE for token in ids[num_common:])][:21]
    departed = generate(engine, departing, session_id="a", max_new_tokens=8)
    assert engine.stats.num_prefill_tokens == 30 + num_read
    expected = full_logprobs(model, departing, departed, SamplingParams())
    assert departed.logprobs == pytest.approx(expected, abs=TOLERANCE)


# ------------------------------------------------------------------------------------------------ shared beginnings


@pytest.mark.parametrize("max_prefill_tokens", [7, 2048])
def test_prompts_that_begin_alike_are_read_once(model: PreTrainedModel, max_prefill_tokens: int) -> None:
    """A group's prompts are equal; those of another task share the tools alone."""
    options: dict[str, Any] = {"num_slots": 8, "max_context_tokens": 128}
    engine = TorchEngine(model, max_prefill_tokens=max_prefill_tokens, **options)
    apart = TorchEngine(model, batch_invariant=True, **options)
    tools = prompt(1, 40)
    prompts = [*[[*tools, *prompt(2, 10)]] * 3, [*tools, *prompt(3, 25)], prompt(4, 30)]

    async def play(of: TorchEngine) -> list[Completion]:
        params = [SamplingParams(max_new_tokens=4, seed=number) for number in range(len(prompts))]
        return await asyncio.gather(*map(of.generate, prompts, params))

    shared, alone = run(play(engine)), run(play(apart))
    assert [completion.token_ids for completion in shared] == [completion.token_ids for completion in alone]
    for one, other in zip(shared, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=TOLERANCE)
    fewest = 50 + 2 * 1 + 25 + 30
    all_tokens = sum(map(len, prompts))
    assert engine.stats.num_prefill_tokens + engine.stats.num_reused_tokens == all_tokens
    # in small pieces, the last tokens of a shared beginning are too few to wait for
    assert engine.stats.num_prefill_tokens - fewest in ([0] if max_prefill_tokens == 2048 else range(MIN_SHARED_TOKENS))
    assert apart.stats.num_reused_tokens == 0


def test_a_beginning_is_copied_from_a_session_in_its_midst(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, max_context_tokens=128)
    first = generate(engine, prompt(1, 30), session_id="a", max_new_tokens=8)
    ids = [*prompt(1, 30), *first.token_ids[:3], 5, 6]
    second = generate(engine, ids, session_id="b", max_new_tokens=5)
    assert engine.stats.num_prefill_tokens == 30 + 2
    assert second.logprobs == pytest.approx(full_logprobs(model, ids, second, SamplingParams()), abs=TOLERANCE)


def test_new_weights_leave_nothing_to_copy() -> None:
    model = tiny_model()
    engine = TorchEngine(model, max_context_tokens=128)
    generate(engine, prompt(1, 30), session_id="a", max_new_tokens=2)
    edit(model)
    run(engine.update_weights(1))
    completion = generate(engine, prompt(1, 30), session_id="b", max_new_tokens=5)
    assert engine.stats.num_reused_tokens == 0
    expected = full_logprobs(model, prompt(1, 30), completion, SamplingParams())
    assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)


def test_the_least_recently_used_idle_session_gives_way(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=2, max_context_tokens=128)
    prompts = {name: prompt(seed, 10) for seed, name in enumerate("abc")}
    for name in ("a", "b", "a", "c"):  # c takes the slot of b
        generate(engine, prompts[name], session_id=name, max_new_tokens=2)
    assert engine.stats.num_evictions == 1
    reused = engine.stats.num_reused_tokens
    generate(engine, prompts["a"], session_id="a", max_new_tokens=2)
    assert engine.stats.num_reused_tokens == reused + 9
    generate(engine, prompts["b"], session_id="b", max_new_tokens=2)
    assert engine.stats.num_reused_tokens == reused + 9


def test_release_frees_the_slot(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=1, max_context_tokens=128)
    generate(engine, prompt(1, 10), session_id="a", max_new_tokens=2)
    run(engine.release("a"))
    run(engine.release("never seen"))
    generate(engine, prompt(1, 10), session_id="b", max_new_tokens=2)
    assert (engine.stats.num_evictions, engine.stats.num_reused_tokens) == (0, 0)


def test_a_session_released_while_it_runs_is_forgotten_when_done(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=1, max_context_tokens=128)

    async def scenario() -> None:
        running = asyncio.create_task(engine.generate(prompt(1, 10), SamplingParams(max_new_tokens=4), session_id="a"))
        while not engine.stats.num_sampled_tokens:
            await asyncio.sleep(0)
        await engine.release("a")
        assert len((await running).token_ids) == 4

    run(scenario())
    generate(engine, prompt(1, 10), session_id="a", max_new_tokens=2)
    assert (engine.stats.num_evictions, engine.stats.num_reused_tokens) == (0, 0)


def test_requests_wait_in_line_for_a_slot(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=2, max_context_tokens=128)
    order: list[int] = []

    async def one(number: int) -> None:
        params = SamplingParams(max_new_tokens=3, seed=number)
        completion = await engine.generate(prompt(number, 6), params, session_id=str(number))
        expected = full_logprobs(model, prompt(number, 6), completion, params)
        assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)
        order.append(number)
        waited.append(completion.queued_s or 0.0)

    async def scenario() -> None:
        asked = asyncio.gather(*map(one, range(7)))
        while not engine.health().running:
            await asyncio.sleep(0)
        assert (engine.health().running, engine.health().queued) == (2, 5)
        await asked

    waited: list[float] = []
    run(scenario())
    assert order == list(range(7))
    assert max(waited[:2]) < min(waited[2:]), "those without a slot waited longer"
    assert (engine.health().running, engine.health().queued) == (0, 0)
    assert (engine.health().prefix_tokens, engine.health().cache_use) == (7 * 6, None)


def test_requests_of_one_session_run_one_after_the_other(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=4, max_context_tokens=128)

    async def scenario() -> list[Completion]:
        params = [SamplingParams(max_new_tokens=4, seed=seed) for seed in range(3)]
        return await asyncio.gather(*(engine.generate(prompt(1, 10), p, session_id="a") for p in params))

    together = run(scenario())
    assert [generate(engine, prompt(1, 10), max_new_tokens=4, seed=s).token_ids for s in range(3)] == [
        completion.token_ids for completion in together
    ]


def test_callers_that_ask_again_at_once_share_the_next_tick(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=8, max_context_tokens=128)

    async def episode(number: int) -> None:
        for turn in range(3):
            params = SamplingParams(max_new_tokens=4, seed=turn)
            await asyncio.wait_for(engine.generate(prompt(number, 6), params), timeout=30)

    async def scenario() -> None:
        await asyncio.gather(*map(episode, range(8)))

    run(scenario())
    assert engine.stats.num_ticks == 3 * 4


# ---------------------------------------------------------------------------------------------------- the end


def test_tokens_and_seconds_of_the_engine_are_counted(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("agentgym.trainers.engines.torch.engine.time", SimpleNamespace(perf_counter=lambda: now[0]))
    plain = TorchEngine._tick

    def slow(engine: TorchEngine) -> bool:
        now[0] += 0.5
        return plain(engine)

    monkeypatch.setattr(TorchEngine, "_tick", slow)
    engine = TorchEngine(model, max_context_tokens=128)
    for number, length in ((1, 3), (2, 5)):
        assert len(generate(engine, prompt(number, 10), max_new_tokens=length).token_ids) == length
        now[0] += 100.0  # an engine without requests is not busy
    assert (engine.stats.num_sampled_tokens, engine.stats.num_ticks, engine.stats.busy_s) == (8, 8, 4.0)


def test_the_stop_token_is_part_of_the_completion(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, max_context_tokens=128)
    free = generate(engine, prompt(1, 10), max_new_tokens=20)
    assert (len(free.token_ids), free.finish_reason) == (20, FinishReason.LENGTH)
    at = next(i for i, token in enumerate(free.token_ids) if i > 4 and token not in free.token_ids[:i])
    stopped = generate(engine, prompt(1, 10), max_new_tokens=20, stop_token_ids=(free.token_ids[at],))
    assert stopped.token_ids == free.token_ids[: at + 1]
    assert stopped.finish_reason is FinishReason.STOP


def test_the_context_limits_prompt_and_completion(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, max_context_tokens=16)
    completion = generate(engine, prompt(1, 10), max_new_tokens=50)
    assert (len(completion.token_ids), completion.finish_reason) == (6, FinishReason.LENGTH)
    expected = full_logprobs(model, prompt(1, 10), completion, SamplingParams())
    assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)
    assert generate(engine, prompt(1, 16)).finish_reason is FinishReason.LENGTH
    assert generate(engine, prompt(1, 16)).token_ids == ()
    with pytest.raises(EngineError, match="17 tokens, more than the context of 16"):
        generate(engine, prompt(1, 17))
    with pytest.raises(EngineError, match="more than the context"):
        run(engine.score(prompt(1, 10), prompt(2, 7)))


@pytest.mark.parametrize(("ids", "message"), [((), "empty"), ((1, VOCAB_SIZE), "vocabulary"), ((-1,), "vocabulary")])
def test_impossible_prompts_are_refused(model: PreTrainedModel, ids: tuple[int, ...], message: str) -> None:
    engine = TorchEngine(model)
    with pytest.raises(EngineError, match=message):
        generate(engine, ids)
    with pytest.raises(EngineError, match=message):
        run(engine.score(ids, (1,)))


def test_a_cancelled_request_frees_its_slot_and_leaves_the_others_alone(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=2, max_context_tokens=512)

    async def scenario() -> Completion:
        long = SamplingParams(max_new_tokens=400)
        doomed = asyncio.create_task(engine.generate(prompt(1, 10), long, session_id="doomed"))
        other = asyncio.create_task(engine.generate(prompt(2, 10), SamplingParams(max_new_tokens=30)))
        in_line = asyncio.create_task(engine.generate(prompt(3, 10), SamplingParams(max_new_tokens=5)))
        cancelled_in_line = asyncio.create_task(engine.generate(prompt(4, 10), long))
        while engine.stats.num_sampled_tokens < 8:
            await asyncio.sleep(0)
        doomed.cancel()
        cancelled_in_line.cancel()
        assert len((await in_line).token_ids) == 5
        assert not other.done()
        for task in (doomed, cancelled_in_line):
            with pytest.raises(asyncio.CancelledError):
                await task
        return await other

    other = run(scenario())
    assert other.token_ids == generate(engine, prompt(2, 10), max_new_tokens=30).token_ids
    generate(engine, prompt(1, 10), session_id="doomed", max_new_tokens=2)
    assert engine.stats.num_reused_tokens == 0


def test_close_fails_what_is_pending_and_can_be_repeated(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=1, max_context_tokens=128)

    async def scenario() -> None:
        params = SamplingParams(max_new_tokens=50)
        tasks = [asyncio.create_task(engine.generate(prompt(n, 5), params)) for n in range(3)]
        while not engine.stats.num_sampled_tokens:
            await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, EngineError) and "closed" in str(result)
        for use in (engine.generate([1], params), engine.score([1], [2]), engine.update_weights(1)):
            with pytest.raises(ClosedError):
                await use

    run(scenario())


def test_an_engine_outlives_its_event_loop(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=1, max_context_tokens=512)
    before = generate(engine, prompt(1, 5), max_new_tokens=5)

    async def walks_away() -> None:
        task = asyncio.create_task(engine.generate(prompt(2, 5), SamplingParams(max_new_tokens=400)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(walks_away())
    assert generate(engine, prompt(1, 5), max_new_tokens=5) == before


# ------------------------------------------------------------------------------------------------ determinism


def test_a_seed_gives_the_same_completion_in_any_company(model: PreTrainedModel) -> None:
    engine = TorchEngine(model, num_slots=16, max_context_tokens=128)
    mixed: dict[str, Any] = {"temperature": 0.8, "top_k": 30, "top_p": 0.95}
    alone = generate(engine, prompt(1, 12), max_new_tokens=15, seed=5, **mixed)

    async def crowd() -> list[Completion]:
        others = [
            engine.generate(prompt(n, 3 + n), SamplingParams(max_new_tokens=3 + n, seed=n, top_k=n)) for n in range(12)
        ]
        chosen = engine.generate(prompt(1, 12), SamplingParams(max_new_tokens=15, seed=5, **mixed))
        return await asyncio.gather(*others[:6], chosen, *others[6:])

    together = run(crowd())[6]
    assert together.token_ids == alone.token_ids
    assert together.logprobs == pytest.approx(alone.logprobs, abs=TOLERANCE)
    assert generate(engine, prompt(1, 12), max_new_tokens=15, seed=6, **mixed).token_ids != alone.token_ids


def test_equal_callers_get_equal_bits(model: PreTrainedModel) -> None:
    runs = [run(play_all(TorchEngine(model, num_slots=3, max_context_tokens=128), model)) for _ in range(2)]
    assert runs[0] == runs[1]


# ---------------------------------------------------------------------------------------------------- weights


def edit(model: Any, seed: int = 1) -> None:
    with torch.no_grad():
        for parameter, other in zip(model.parameters(), tiny_model(seed=seed).parameters(), strict=True):
            parameter.copy_(other)


def test_new_weights_change_the_output_and_the_version() -> None:
    model = tiny_model()
    engine = TorchEngine(model, max_context_tokens=128)
    before = generate(engine, prompt(1, 10), session_id="a", max_new_tokens=8)
    edit(model)
    run(engine.update_weights(4))
    after = generate(engine, prompt(1, 10), session_id="a", max_new_tokens=8)
    assert engine.policy_version == 4
    assert (set(before.policy_versions), set(after.policy_versions)) == ({0}, {4})
    assert engine.stats.num_reused_tokens == 0, "keys and values of older weights are of no use"
    expected = full_logprobs(model, prompt(1, 10), after, SamplingParams())
    assert after.logprobs == pytest.approx(expected, abs=TOLERANCE)
    assert before.token_ids != after.token_ids


def test_a_request_in_flight_goes_on_with_the_new_weights() -> None:
    model, old = tiny_model(), tiny_model()
    engine = TorchEngine(model, max_context_tokens=128)
    ids = prompt(1, 10)

    async def scenario() -> Completion:
        task = asyncio.create_task(engine.generate(ids, SamplingParams(max_new_tokens=12)))
        while engine.stats.num_sampled_tokens < 5:
            await asyncio.sleep(0)
        edit(model)
        await engine.update_weights(1)
        return await task

    completion = run(scenario())
    num_old = completion.policy_versions.count(0)
    assert 0 < num_old < 12 and completion.policy_versions == (0,) * num_old + (1,) * (12 - num_old)
    by_old, by_new = (full_logprobs(m, ids, completion, SamplingParams()) for m in (old, model))
    assert completion.logprobs == pytest.approx(by_old[:num_old] + by_new[num_old:], abs=TOLERANCE)


def test_weights_changed_without_a_word_are_noticed() -> None:
    model = tiny_model()
    engine = TorchEngine(model, max_context_tokens=128)
    edit(model)
    with pytest.raises(EngineError, match="call update_weights"):
        generate(engine, prompt(1, 10))
    with pytest.raises(EngineError, match="call update_weights"):
        run(engine.score(prompt(1, 10), (1,)))
    run(engine.update_weights(1))
    assert generate(engine, prompt(1, 10)).policy_versions[0] == 1


def test_what_is_not_fused_is_shared_with_the_model(model: PreTrainedModel) -> None:
    weights = read_weights(model, 1024)
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    for tensor in (weights.embedding, weights.head, weights.layers[0].out, weights.layers[0].down):
        assert tensor.data_ptr() in parameters


def lora_model(**changes: Any) -> Any:
    config = LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", lora_dropout=0.3, **changes)
    model: Any = get_peft_model(tiny_model(), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(len(name)))
    return model.eval()


def test_lora_adapters_are_merged_without_changing_the_model() -> None:
    model = lora_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = TorchEngine(model, max_context_tokens=128)
    run(play_all(engine, model, num_sessions=3, num_turns=2))
    first = generate(engine, prompt(1, 10), max_new_tokens=8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(-1)
    run(engine.update_weights(1))
    second = generate(engine, prompt(1, 10), max_new_tokens=8)
    assert first.token_ids != second.token_ids
    expected = full_logprobs(model, prompt(1, 10), second, SamplingParams())
    assert second.logprobs == pytest.approx(expected, abs=TOLERANCE)
    with model.disable_adapter():
        run(engine.update_weights(2))
    plain = generate(engine, prompt(1, 10), max_new_tokens=8)
    assert plain.token_ids == generate(TorchEngine(tiny_model()), prompt(1, 10), max_new_tokens=8).token_ids
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor if "lora_B" not in name else -tensor, before[name])


def test_fully_trained_modules_beside_lora_are_read() -> None:
    model = lora_model(modules_to_save=["lm_head"])
    with torch.no_grad():
        model.get_base_model().lm_head.modules_to_save["default"].weight.mul_(0.5)
    run(play_all(TorchEngine(model, max_context_tokens=128), model, num_sessions=2, num_turns=1))


# ----------------------------------------------------------------------------------------------------- failures


def test_a_failing_forward_fails_its_requests_and_nothing_else(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TorchEngine(model, num_slots=2, max_context_tokens=512)
    generate(engine, prompt(1, 300), max_new_tokens=2)  # a cache that has grown is one that failures must clear too
    expected = generate(engine, prompt(1, 10), session_id="a", max_new_tokens=5)

    def break_down(*_: Any) -> None:
        raise RuntimeError("out of memory")

    async def scenario() -> list[Any]:
        params = SamplingParams(max_new_tokens=5)
        with monkeypatch.context() as patch:
            patch.setattr(runner, "forward", break_down)
            sessions = [engine.generate(prompt(1, 10), params, session_id=name) for name in "ab"]
            failed = await asyncio.gather(*sessions, return_exceptions=True)
        return [*failed, await engine.generate(prompt(1, 10), params, session_id="a")]

    first, second, after = run(scenario())
    for error in (first, second):
        assert isinstance(error, EngineError) and "RuntimeError: out of memory" in str(error)
        assert isinstance(error.__cause__, RuntimeError)
    assert first is not second
    assert after == expected


def test_logits_that_are_not_finite_are_an_error_not_a_token() -> None:
    model = tiny_model()
    engine = TorchEngine(model, num_slots=2, max_context_tokens=128)
    expected = generate(engine, prompt(1, 10), max_new_tokens=5)
    with torch.no_grad():
        model.get_parameter("model.norm.weight").mul_(torch.nan)
        model.get_parameter("model.layers.0.self_attn.v_proj.weight").mul_(torch.nan)
    run(engine.update_weights(1))
    with pytest.raises(EngineError, match="not finite"):
        generate(engine, prompt(1, 10))
    with pytest.raises(EngineError, match="not finite"):
        run(engine.score(prompt(1, 10), (1, 2)))
    edit(model, seed=0)
    run(engine.update_weights(2))
    assert generate(engine, prompt(1, 10), max_new_tokens=5).token_ids == expected.token_ids


def test_other_architectures_are_refused_by_name() -> None:
    gpt2: Any = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=16))
    with pytest.raises(ConfigError, match=r"'gpt2'.*llama, qwen2, qwen3"):
        TorchEngine(gpt2, forward="own")


def test_a_sliding_window_is_refused_only_where_it_would_matter() -> None:
    windowed = tiny_model("qwen2", use_sliding_window=True, sliding_window=64, max_window_layers=1)
    with pytest.raises(UsageError, match="the last 64 tokens"):
        TorchEngine(windowed, max_context_tokens=65, forward="own")
    TorchEngine(windowed, max_context_tokens=64, forward="own")


def test_a_rope_that_changes_with_the_length_is_refused_beyond_it() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    model = tiny_model("llama", rope_parameters=rope, max_position_embeddings=64)
    with pytest.raises(UsageError, match="beyond 64 tokens"):
        TorchEngine(model, max_context_tokens=65)
    engine = TorchEngine(model, max_context_tokens=64)
    run(play_all(engine, model, num_sessions=2, num_turns=2))


@pytest.mark.parametrize("name", ["num_slots", "max_context_tokens", "max_prefill_tokens"])
def test_sizes_below_one_are_refused(model: PreTrainedModel, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        TorchEngine(model, **dict[str, Any]({name: 0}))
