"""Rows, shared prefixes and packed forests: the same states, losses and gradients, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.tiny_models import tiny_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, StableLmConfig, StableLmForCausalLM

from agentgym.trainers import kinds
from agentgym.trainers.data.batch import Batch, build_batches
from agentgym.trainers.data.fit import can_share_prefixes, tokens_of_a_call
from agentgym.trainers.data.layout import (
    Forest,
    PaddedRows,
    _dense_mask,
    grow_forest,
    hidden_states,
    lay_out,
    recomputed,
    shared_prefix,
)
from agentgym.trainers.data.plan import PlannedBatch, RowOutline, plan_batches
from agentgym.trainers.data.row import Row
from agentgym.trainers.kinds import LayoutKind
from agentgym.trainers.losses import options as of
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs
from agentgym.trainers.losses.loss import policy_loss, token_logprobs
from agentgym.trainers.models import head_logprobs as vocabulary
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.types import CausalLM

KINDS: tuple[LayoutKind, ...] = get_args(LayoutKind)
ROWS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=8), min_size=1, max_size=8)


@given(ROWS)
def test_a_token_sees_its_row_and_nothing_else(rows: list[list[int]]) -> None:
    forest, where = grow_forest(rows)
    sees = _dense_mask(forest, torch.float64)[0, 0] == 0
    for row, places in zip(rows, where, strict=True):
        assert forest.input_ids[places].tolist() == row
        assert forest.position[places].tolist() == list(range(len(row)))
        assert all(before < after for before, after in pairwise(places))
        for depth, place in enumerate(places):
            assert sees[place].nonzero().flatten().tolist() == places[: depth + 1]
    prefixes = {tuple(row[:length]) for row in rows for length in range(1, len(row) + 1)}
    assert forest.input_ids.numel() == len(prefixes), "each distinct prefix is there once"


@given(ROWS)
def test_a_shared_prefix_leaves_something_of_every_row(rows: list[list[int]]) -> None:
    length = shared_prefix(rows)
    assert len({tuple(row[:length]) for row in rows}) == 1
    assert length < min(map(len, rows)) and (len(rows) > 1 or length == 0)
    layout, where = lay_out(rows, "prefix", "cpu")
    assert isinstance(layout, PaddedRows)
    read = torch.cat([layout.prefix_ids, layout.input_ids.flatten()])
    assert [read[places].tolist() for places in where] == rows


@pytest.fixture(scope="module")
def exact_model() -> Any:
    """A model that computes in float64 throughout; Qwen's norms do in float32."""
    config = StableLmConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    return StableLmForCausalLM(config).double()


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_each_row_alone(exact_model: Any, kind: LayoutKind) -> None:
    model = exact_model
    rows = [(5, 6, 7, 8), (5, 6, 7, 9, 9, 4), (5, 6, 2), (5, 6, 7, 8)]
    layout, where = lay_out(rows, kind, "cpu")
    states = hidden_states(trunk_of(model), layout)
    for row, places in zip(rows, where, strict=True):
        alone = trunk_of(model)(input_ids=torch.tensor([row])).last_hidden_state[0]
        torch.testing.assert_close(states[places], alone, atol=1e-12, rtol=0)


def group(ordinal: int, first: int, num_members: int, *, num_turns: int = 3) -> list[Row]:
    """Members of a group: a prompt of 12 tokens they share, then turns of three sampled and two said tokens."""
    generator = torch.Generator().manual_seed(ordinal)
    prompt = tuple(torch.randint(1, 16, (12,), generator=generator).tolist())
    made = []
    for member in range(num_members):
        length = num_turns + member % 3
        said = torch.randint(1, 4, (length, 5), generator=generator).flatten().tolist()  # few words: turns coincide
        mask = np.array([False] * 12 + [True, True, True, False, False] * length)
        made.append(
            Row.of(
                (*prompt, *said),
                mask,
                {
                    "advantage": mask * (0.5 - member),
                    "logprob_rollout": -1.5 * mask,
                    "turn_index": (np.arange(len(mask)) - 12) // 5,
                },
                trajectory=first + member,
                ordinal=ordinal,
            )
        )
    return made


SAMPLES = [*group(0, 0, 4), *group(1, 4, 3), *group(2, 7, 1)]
LOSSES = {
    "ppo": LossConfig(),
    "gspo": LossConfig(kind="gspo"),
    "minpro, kl, entropy": LossConfig(
        kind="minpro", options=of.MinproOptions(), regularisers=(of.KlOptions(coef=0.1), of.EntropyOptions(coef=0.01))
    ),
}


def update(model: Any, samples: Sequence[Row], config: LossConfig) -> tuple[float, Tensor, list[Batch]]:
    """Loss, gradient and micro-batches of an update."""
    model.zero_grad()
    batches = build_batches(
        samples,
        aggregation=config.mean,
        unit=config.unit,
        tokens_per_microbatch=config.microbatch_tokens,
        layout=config.layout,
    )
    total = 0.0
    for batch in batches:
        logprob, entropy = token_logprobs(model, batch, 0.8, entropy_has_gradient=True)
        old = logprob.detach() + 0.05 * torch.cos(batch.target.double())
        scores = BatchLogprobs(logprob=logprob, logprob_old=old, entropy=entropy, logprob_ref=old - 0.1)
        loss = policy_loss(scores, batch, config).loss
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return total, gradient, batches


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("tokens", [40, 100, 10_000])
def test_losses_and_gradients_do_not_depend_on_the_layout(exact_model: Any, loss: str, tokens: int) -> None:
    model = exact_model
    config = replace(LOSSES[loss], tokens_per_microbatch=tokens)
    expected, gradient, _ = update(model, SAMPLES, replace(config, layout="rows"))
    for layout in ("prefix", "packed"):
        total, other, batches = update(model, SAMPLES, replace(config, layout=layout))
        assert total == pytest.approx(expected, abs=1e-10)
        torch.testing.assert_close(other, gradient, atol=1e-10, rtol=0)
        assert sum(batch.num_tokens for batch in batches) == sum(len(sample.in_batch) for sample in SAMPLES)


def forwarded(batches: Sequence[Batch]) -> int:
    layouts = [batch.layout for batch in batches]
    return sum(
        layout.input_ids.numel() + (layout.prefix_ids.numel() if isinstance(layout, PaddedRows) else 0)
        for layout in layouts
    )


def test_less_is_forwarded_and_never_more_at_a_time_than_there_is_room_for() -> None:
    for tokens in (40, 100, 10_000):
        batches = {
            kind: build_batches(SAMPLES, tokens_per_microbatch=tokens, layout=kind)
            for kind in ("rows", "prefix", "packed")
        }
        for kind, made in batches.items():
            for batch in made:
                num_rows = len(set(batch.row.tolist()))
                assert forwarded([batch]) <= tokens or num_rows == 1, kind
        assert forwarded(batches["packed"]) <= forwarded(batches["prefix"]) <= forwarded(batches["rows"])
    assert forwarded(batches["packed"]) < forwarded(batches["prefix"]) < forwarded(batches["rows"])
    whole = build_batches(SAMPLES, tokens_per_microbatch=10_000, layout="packed")
    assert len(whole) == 1 and isinstance(whole[0].layout, Forest)


def test_rows_without_a_common_beginning_stay_rows() -> None:
    other = [replace(sample, token_ids=(n + 1, *sample.token_ids[1:])) for n, sample in enumerate(SAMPLES)]
    batches = build_batches(other, layout="prefix")
    assert all(isinstance(batch.layout, PaddedRows) and not batch.layout.prefix_ids.numel() for batch in batches)
    assert len(batches) == 1, "rows of several groups are forwarded together again"


def test_models_without_plain_keys_and_values_share_nothing(small_model: Any) -> None:
    assert can_share_prefixes(small_model)
    small_model.config.layer_types = ["full_attention", "sliding_attention"]
    assert not can_share_prefixes(small_model)


def test_the_block_mask_of_flex_attention_is_the_dense_one() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    from agentgym.trainers.data.layout import _block_mask

    forest, _ = grow_forest([sample.token_ids for sample in SAMPLES])
    length = forest.end.numel()
    query, key, value = torch.randn(
        3, 1, 2, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    ours = flex_attention(query, key, value, block_mask=_block_mask(forest))
    dense = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=_dense_mask(forest, torch.float64)
    )
    torch.testing.assert_close(ours, dense, atol=1e-12, rtol=0)


# ---------------------------------------------------------------------------------------------------------- memory


def waited_for(batches: Sequence[PlannedBatch], num_ranks: int) -> int:
    """Return the sum over rounds of the tokens of the largest micro-batch."""
    sizes = [batch.num_forwarded for batch in batches]
    return sum(max(sizes[at : at + num_ranks]) for at in range(0, len(sizes), num_ranks))


@pytest.mark.parametrize("layout", ["rows", "prefix", "packed"])
def test_a_plan_tells_the_sizes_of_its_micro_batches(layout: LayoutKind) -> None:
    planned = plan_batches([RowOutline.of(sample) for sample in SAMPLES], tokens_per_microbatch=24, layout=layout)
    made = build_batches(SAMPLES, tokens_per_microbatch=24, layout=layout)
    assert len(made) > 3 and planned.num_trained == sum(batch.num_tokens for batch in made)
    for batch, tensors in zip(planned.batches, made, strict=True):
        shared = tensors.layout.prefix_ids.numel() if isinstance(tensors.layout, PaddedRows) else 0
        assert batch.num_forwarded == shared + tensors.layout.input_ids.numel()
        assert (batch.rows, batch.num_trained, batch.first) == (tensors.rows, tensors.num_tokens, tensors.first)


def rows_alike(ordinal: int, num_rows: int, num_shared: int, num_own: int) -> list[RowOutline]:
    """Rows that begin alike."""
    paths = [(ordinal,) * num_shared + (100 + at,) * num_own for at in range(num_rows)]
    return [
        RowOutline(trajectory=100 * ordinal + at, ordinal=ordinal, num_tokens=len(path), trained=((0, 3),), path=path)
        for at, path in enumerate(paths)
    ]


def test_a_prefix_is_shared_where_it_saves_more_than_a_further_call_costs() -> None:
    rows = [*rows_alike(0, 8, 90, 10), *rows_alike(1, 8, 20, 80)]
    plans = [
        plan_batches(rows, tokens_per_microbatch=4096, layout="prefix", min_shared_tokens=worth).batches
        for worth in (0, 600, 700)
    ]
    assert [[batch.layout for batch in batches] for batches in plans] == [["prefix"] * 2, ["prefix", "rows"], ["rows"]]
    assert [sum(batch.num_forwarded for batch in batches) for batches in plans] == [170 + 660, 170 + 800, 1600]


def test_a_call_is_worth_more_tokens_of_a_smaller_model_and_none_on_a_cpu() -> None:
    small, large = (
        tokens_of_a_call(cast(CausalLM, tiny_model(intermediate_size=size)), torch.device("cuda")) for size in (64, 640)
    )
    assert 0 < 2 * large < small
    assert tokens_of_a_call(cast(CausalLM, tiny_model()), torch.device("cpu")) == 0


@pytest.mark.parametrize("layout", ["rows", "packed"])
@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_ranks_share_micro_batches_of_similar_size(layout: LayoutKind, num_ranks: int) -> None:
    rows = [RowOutline.of(sample) for sample in SAMPLES]
    alone, shared = (
        plan_batches(rows, tokens_per_microbatch=24, layout=layout, num_lanes=count).batches for count in (1, num_ranks)
    )
    assert sorted(row for batch in shared for row in batch.rows) == list(range(len(rows)))
    assert [batch.first for batch in shared] == [
        sum(earlier.num_trained for earlier in shared[:at]) for at in range(len(shared))
    ]
    sizes = [batch.num_forwarded for batch in shared]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) <= max(24, *(row.num_tokens for row in rows))
    assert -(-len(shared) // num_ranks) <= -(-len(alone) // num_ranks), "no more rounds"
    assert waited_for(shared, num_ranks) <= waited_for(alone, num_ranks)


def test_no_rank_waits_for_the_last_micro_batch_of_another() -> None:
    """Nine full micro-batches on eight ranks would take two rounds, the second for one rank."""
    rows = [
        RowOutline(trajectory=at, ordinal=at, num_tokens=100, trained=((0, 9),), path=(at,) * 100) for at in range(72)
    ]
    assert len(plan_batches(rows, tokens_per_microbatch=800).batches) == 9
    shared = plan_batches(rows, tokens_per_microbatch=800, num_lanes=8).batches
    assert waited_for(shared, 8) == 1000 and len(shared) == 15, "5 and 5 rows, where 8 and 8 would take 1,600"


def saved_bytes(model: Any, layout: LayoutKind, *, recompute: bool) -> tuple[int, Tensor]:
    """What a gradient keeps from the forward pass, parameters left out, and the gradient."""
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.zero_grad()
    (batch,) = build_batches(SAMPLES, layout=layout)
    with recomputed(model) if recompute else nullcontext():
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            logprob, _ = token_logprobs(model, batch, 1.0)
        logprob.sum().backward()  # type: ignore[no-untyped-call]
    return sum(kept.values()), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def is_recomputing(model: Any) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@pytest.mark.parametrize("layout", ["rows", "packed"])
def test_recomputing_keeps_less_and_changes_nothing(exact_model: Any, layout: LayoutKind) -> None:
    exact_model.eval()
    much, gradient = saved_bytes(exact_model, layout, recompute=False)
    little, again = saved_bytes(exact_model, layout, recompute=True)
    assert little < much / 3
    torch.testing.assert_close(again, gradient, atol=1e-12, rtol=0)
    assert not exact_model.training and not is_recomputing(exact_model)


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the number of elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, Tensor):
                self.num_elements = max(self.num_elements, tensor.numel())
        return made


@pytest.mark.parametrize("num_tokens", [300, 1200])
def test_the_logits_of_a_batch_never_exist_at_once(monkeypatch: pytest.MonkeyPatch, num_tokens: int) -> None:
    monkeypatch.setattr(kinds, "MAX_LOGITS", 100 * 5000)
    head = torch.nn.Linear(8, 5000)
    states = torch.zeros(num_tokens, 8, requires_grad=True)
    with LargestTensor() as largest:
        logprobs, _ = vocabulary.head_logprobs(head, states, torch.zeros(num_tokens, dtype=torch.long), 1.0)
        logprobs.sum().backward()  # type: ignore[no-untyped-call]
    assert largest.num_elements == 100 * 5000


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 12))
def test_pieces_of_the_vocabulary_change_nothing(rows_at_once: int, num_tokens: int) -> None:
    torch.manual_seed(num_tokens)
    head = torch.nn.Linear(6, 11, dtype=torch.float64)
    states = torch.randn(num_tokens, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (num_tokens,))

    def gradients() -> list[Tensor]:
        logprobs, entropies = vocabulary.head_logprobs(head, states, targets, 0.7, entropy_has_gradient=True)
        return list(torch.autograd.grad(logprobs.sum() + 0.1 * entropies.sum(), [states, *head.parameters()]))

    whole = gradients()
    before, kinds.MAX_LOGITS = kinds.MAX_LOGITS, 11 * rows_at_once
    try:
        pieces = gradients()
    finally:
        kinds.MAX_LOGITS = before
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


class EarlierModel(torch.nn.Module):
    """The methods of a model before transformers 5.23."""

    gradient_checkpointing = False

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any]) -> None:
        self.gradient_checkpointing = not gradient_checkpointing_kwargs["use_reentrant"]

    def gradient_checkpointing_disable(self) -> None:
        self.gradient_checkpointing = False


@pytest.mark.filterwarnings("error:.*gradient_checkpointing:FutureWarning")
def test_layers_are_recomputed_by_transformers_present_name(exact_model: Any) -> None:
    with recomputed(exact_model):
        assert is_recomputing(exact_model)
    assert not is_recomputing(exact_model)


def test_layers_are_recomputed_under_the_earlier_name_too() -> None:
    model: Any = EarlierModel()
    with recomputed(model):
        assert is_recomputing(model)
    assert not is_recomputing(model)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("granite", {"num_key_value_heads": 2, "intermediate_size": 48, "attention_dropout": 0.5}),
        ("opt", {"word_embed_proj_dim": 32, "ffn_dim": 48, "dropout": 0.5}),  # which calls a function in its layers
    ],
)
def test_layers_that_are_recomputed_drop_out_nothing(kind: str, changes: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model: Any = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**sizes, **changes))  # type: ignore[no-untyped-call]
    model.eval()
    ids = torch.arange(1, 13).reshape(2, 6)
    modes = {name: (module.training, vars(module).get("dropout")) for name, module in model.named_modules()}
    grads = []
    for context in (nullcontext(), recomputed(model), recomputed(model)):
        with context:
            model(input_ids=ids, use_cache=False).logits.square().sum().backward()
        grads.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
        model.zero_grad()
    torch.testing.assert_close(grads[1], grads[0])
    torch.testing.assert_close(grads[2], grads[0])
    found = {name: (module.training, vars(module).get("dropout")) for name, module in model.named_modules()}
    assert found == modes
