"""What a run needs, on paper: published parameter counts, and bytes counted on models that were really built."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from transformers import AutoConfig, AutoModelForCausalLM

from agentgym.errors import ConfigError, CorruptDataError, UnknownNameError, UsageError
from agentgym.trainers.checkpoint import checkpoint_path
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.data.layout import recomputed
from agentgym.trainers.losses.options import KlOptions
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.decoder import Sizes, count_weights
from agentgym.trainers.models.meta import count_built, meta_model
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.models.model_shapes import KNOWN, plan_model
from agentgym.trainers.models.tiny import network_shape
from agentgym.trainers.planning.dry_run import GIB, dry_run
from agentgym.trainers.planning.footprint import activation_bytes, footprint
from agentgym.trainers.planning.step_sizes import pace_note
from agentgym.trainers.recipes import RECIPES, load_recipe
from agentgym.trainers.train import train

PUBLISHED = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-4B-Base": 4_022_468_096,
    "Qwen/Qwen3-14B-Base": 14_768_307_200,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "smollm2": 134_515_008,
}
"""Numbers of parameters as the models' pages say."""
TINY = {
    "qwen2": {"hidden_size": 96, "intermediate_size": 200, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3": {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 6, "num_key_value_heads": 2},
}


def tiny(kind: str, num_layers: int) -> Any:
    extra = {"head_dim": 24} if kind == "qwen3" else {}
    shape = AutoConfig.for_model(kind, vocab_size=64, num_hidden_layers=num_layers, **TINY[kind], **extra)
    return AutoModelForCausalLM.from_config(shape)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_have_the_published_number_of_parameters(name: str) -> None:
    sizes, weights = plan_model(ModelConfig(path=name))
    assert (weights.own, weights.trained + weights.senses, weights.adapters) == (PUBLISHED[name], PUBLISHED[name], 0)
    model = meta_model(KNOWN[name], LoraSettings(rank=0))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert count_built(model) == (sizes, weights)


@pytest.mark.parametrize("lora", [LoraSettings(rank=0), LoraSettings(rank=4, target_modules=("k_proj", "down_proj"))])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", *TINY])
def test_weights_are_counted_as_transformers_and_peft_build_them(kind: str, is_tied: bool, lora: LoraSettings) -> None:
    extra = {"head_dim": 24} if kind == "qwen3" else {}
    values: dict[str, Any] = {**TINY.get(kind, TINY["qwen2"]), **extra, "vocab_size": 70, "num_hidden_layers": 3}
    values |= {"model_type": kind, "tie_word_embeddings": is_tied}
    sizes = Sizes.read(values)
    assert (sizes, count_weights(sizes, lora)) == count_built(meta_model(values, lora))


def test_a_model_that_no_formula_knows_is_built_to_be_counted(tmp_path: Path) -> None:
    shape = AutoConfig.for_model("mistral", vocab_size=64, num_hidden_layers=2, **TINY["qwen2"])
    shape.save_pretrained(tmp_path)
    _, weights = plan_model(ModelConfig(path=str(tmp_path)))
    built: Any = AutoModelForCausalLM.from_config(shape)  # type: ignore[no-untyped-call]
    assert weights.own == sum(p.numel() for p in built.parameters())


def test_a_model_with_names_of_its_own_is_planned(tmp_path: Path) -> None:
    shape = AutoConfig.for_model("gpt2", vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=96)
    shape.save_pretrained(tmp_path)
    sizes, weights = plan_model(ModelConfig(path=str(tmp_path), lora=LoraSettings(rank=0)))
    assert (sizes.hidden, sizes.intermediate, sizes.layers, sizes.head_dim) == (32, 128, 2, 8)
    assert weights.matrices == 2 * 12 * 32 * 32 and weights.layer == 12 * 32 * 32 + 13 * 32
    AutoConfig.for_model("mamba", vocab_size=64, hidden_size=32, num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="'mamba' cannot be planned: its configuration has no num_attention_heads"):
        plan_model(ModelConfig(path=str(tmp_path), lora=LoraSettings(rank=0)))


def test_adapters_are_counted_as_peft_builds_them() -> None:
    lora = LoraSettings(rank=4, target_modules=("q_proj", "down_proj"))
    config = replace(
        load_recipe("alfworld-qwen2.5-1.5b"), model=ModelConfig(path="Qwen/Qwen2.5-1.5B-Instruct", lora=lora)
    )
    assert dry_run(config).num_trained == 28 * 4 * ((1536 + 1536) + (8960 + 1536))
    assert dry_run(config).num_parameters == PUBLISHED["Qwen/Qwen2.5-1.5B-Instruct"]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", TINY)
def test_activations_are_what_autograd_keeps(kind: str, recompute: bool) -> None:
    """Counted in the storages that the forward of a real model saves, two depths apart to leave out what is once."""

    def kept(num_layers: int, num_rows: int = 2, length: int = 32) -> int:
        model = tiny(kind, num_layers)
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        saved: dict[int, torch.Tensor] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with recomputed(model) if recompute else nullcontext():
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                model.model(input_ids=torch.zeros(num_rows, length, dtype=torch.long), use_cache=False)
        return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())

    def counted(num_layers: int) -> int:
        return activation_bytes(Sizes.read(tiny(kind, num_layers).config.to_dict()), 2 * 32, recompute=recompute)

    assert kept(3) - kept(1) == counted(3) - counted(1)
    if not recompute:  # where it does, the forward does not show the one layer that is there meanwhile
        assert kept(2) == pytest.approx(counted(2), rel=0.02)  # position angles and token ids


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_in_bfloat16_activations_and_copies_of_matrices_are_what_autocast_keeps(kind: str) -> None:
    """A rehearsal on a CPU: on a GPU, autocast stores the same tensors."""

    def kept(num_layers: int) -> tuple[int, int]:
        model = tiny(kind, num_layers)
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        sizes = {tuple(sorted(p.shape)) for p in model.parameters() if p.ndim == 2}
        saved: dict[int, torch.Tensor] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        length = 31  # a number of tokens that no matrix has as its width
        with (
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16),
        ):
            model.model(input_ids=torch.zeros(2, length, dtype=torch.long), use_cache=False)
        is_cast = {at: tuple(sorted(tensor.shape)) in sizes for at, tensor in saved.items()}
        nbytes = {at: tensor.untyped_storage().nbytes() for at, tensor in saved.items()}
        return sum(n for at, n in nbytes.items() if not is_cast[at]), sum(n for at, n in nbytes.items() if is_cast[at])

    one, three = kept(1), kept(3)
    shapes = [Sizes.read(tiny(kind, num_layers).config.to_dict()) for num_layers in (1, 3)]
    counted = [activation_bytes(shape, 2 * 31, recompute=False, in_bfloat16=True) for shape in shapes]
    assert three[0] - one[0] == counted[1] - counted[0]
    matrices = [count_weights(shape, LoraSettings()).matrices for shape in shapes]
    assert three[1] - one[1] == 2 * (matrices[1] - matrices[0])


def test_a_gpu_multiplies_in_bfloat16_and_has_larger_pieces_of_logits() -> None:
    recipe = load_recipe("alfworld-qwen2.5-1.5b")
    config = apply_overrides(recipe, ["model.lora.rank=0", "loss.recompute_activations=false"])
    exact = apply_overrides(config, ["loss.precision=float32"])
    on_cpu, on_gpu = (footprint(config, *plan_model(config.model), 1, on_gpu=on_gpu) for on_gpu in (False, True))
    in_float32 = footprint(exact, *plan_model(exact.model), 1, on_gpu=True)
    assert on_gpu.activations < on_cpu.activations == in_float32.activations
    assert (on_cpu.cast_weights, in_float32.cast_weights) == (0, 0) and on_gpu.cast_weights > 2 * GIB
    assert on_cpu.logits < on_gpu.logits
    adapted = apply_overrides(config, ["model.lora.rank=8", "loss.recompute_activations=true"])
    by_layer = footprint(adapted, *plan_model(adapted.model), 1, on_gpu=True).cast_weights
    assert by_layer == on_gpu.cast_weights // 28, "frozen matrices are cast again for the gradient"
    sized = apply_overrides(config, ["loss.tokens_per_microbatch=8192"])
    assert dry_run(sized, device_gib=80).memory == footprint(sized, *plan_model(sized.model), 1, on_gpu=True)


@pytest.mark.parametrize("rank", [0, 8])
def test_weights_gradients_and_moments_are_what_a_step_allocates(rank: int) -> None:
    config = load_recipe("tiny")
    config = replace(config, model=replace(config.model, lora=LoraSettings(rank=rank)))
    shape = network_shape(config.model, config.model.vocab_size)
    built = AutoModelForCausalLM.from_config(shape)  # type: ignore[no-untyped-call]
    model = add_lora(built, config.model.lora, 0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    logits: Any = model(input_ids=torch.zeros(1, 8, dtype=torch.long)).logits
    logits.sum().backward()
    optimizer.step()
    found = footprint(config, *plan_model(config.model), num_ranks=1)
    assert found.weights == sum(p.nbytes for p in model.parameters())
    assert found.gradients == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert found.optimizer == sum(tensor.nbytes for tensor in moments)


def fake_step(num_layers: int, num_tokens: int) -> dict[Any, int]:
    """Bytes by kind after the forward of a second step, as torch's tracker counts them on fake tensors."""
    with FakeTensorMode():
        model = tiny("qwen2", num_layers)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        ids = torch.zeros(1, num_tokens, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, ids)
        found: dict[Any, int] = {}
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
                (found,) = tracker.get_tracker_snapshot("current").values()
                hidden.sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    return found


def test_what_torchs_own_tracker_counts_on_fake_tensors() -> None:
    """Weights and moments are the same. Activations differ by what a forward on fake tensors alone makes.

    transformers cannot look at fake values and so does not see that attention is causal: it makes a mask of the size
    of a row times the row in each layer, and repeats keys and values for each head. The real forward does neither.
    """
    num_tokens, shapes = 64, [tiny("qwen2", number).config for number in (1, 2)]
    one, two = (fake_step(shape.num_hidden_layers, num_tokens) for shape in shapes)
    sizes = [Sizes.read(shape.to_dict()) for shape in shapes]
    weights = [[p.nbytes for p in tiny("qwen2", number).parameters()] for number in (1, 2)]
    trained = [[p.nbytes for p in tiny("qwen2", number).model.parameters()] for number in (1, 2)]  # not the head
    assert [one[_MemRefType.PARAM], two[_MemRefType.PARAM]] == [sum(each) for each in weights]
    moments = [2 * sum(each) + 4 * len(each) for each in trained]  # and the number of steps of each parameter
    assert [one[_MemRefType.OPT], two[_MemRefType.OPT]] == moments
    more_here = num_tokens * 4 * (num_tokens + 2 * (sizes[0].heads - sizes[0].kv_heads))
    counted = [activation_bytes(each, num_tokens, recompute=False) for each in sizes]
    assert two[_MemRefType.ACT] - one[_MemRefType.ACT] == counted[1] - counted[0] + more_here


def test_ranks_cut_up_what_is_trained_and_copy_what_is_sampled_from() -> None:
    config = load_recipe("webshop-qwen2.5-1.5b-fsdp")
    one, eight = dry_run(config, 1).memory, dry_run(config, 8).memory
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(eight, name) == pytest.approx(getattr(one, name) / 8)
    assert (one.served_copy, eight.served_copy) == (0, one.weights), "a processor's engine computes in float32"
    for more, copied in (([], 0), (["engine.dtype=float32"], one.weights), (["ranks.rollouts=first"], one.weights)):
        on_gpus = dry_run(apply_overrides(config, more), 8, device_gib=140).memory
        assert on_gpus.served_copy == copied
    served = ["engine.kind=vllm", 'engine.urls=["http://127.0.0.1:8000"]']
    adapters = ["model.lora.rank=8"]
    for way, more, copied in (
        ("folder", [], 0),
        ("folder", adapters, 0),
        ("lora", adapters, 0),
        ("ipc", [], one.weights // 2),  # sent in the servers' dtype, adapters merged
        ("nccl", adapters, one.weights // 2),
    ):
        overrides = [*served, f"engine.weight_sync={way}", *more]
        assert dry_run(apply_overrides(config, overrides), 8, device_gib=140).memory.served_copy == copied
    assert one.weights == 4 * PUBLISHED["Qwen/Qwen2.5-1.5B-Instruct"]
    assert eight.without_engine == eight.total - eight.served_copy - eight.engine_weights - eight.kv_cache


@pytest.mark.parametrize("name", [name for name in RECIPES if "qwen" in name])
def test_every_recipe_fits_what_its_page_says(name: str) -> None:
    is_cut = name.endswith("-fsdp")
    config = load_recipe(name)
    device_gib = 141e9 / GIB if is_cut else 80
    found = dry_run(config, num_ranks=8 if is_cut else 1, device_gib=device_gib)
    assert found.memory.total + 3 * GIB < device_gib * GIB, asdict(found.memory)
    assert found.rollouts_per_step == (1280 if name.startswith("searchqa") else 128)
    assert found.tokens_per_step is not None and found.tokens_per_step > found.rollouts_per_step
    assert "Hugging Face" in found.downloads[0]


def test_a_checkpoint_has_the_size_of_the_plan(tmp_path: Path) -> None:
    config = apply_overrides(
        load_recipe("tiny"), ["num_steps=1", "sft.num_demos=0", "eval.num_episodes=1", "zero_variance_filter=off"]
    )
    config = replace(config, loss=replace(config.loss, regularisers=(KlOptions(),)))
    train(config, tmp_path / "run")
    written = sum(path.stat().st_size for path in checkpoint_path(tmp_path / "run", "rl", 1).glob("*.distcp"))
    found = dry_run(config)
    assert written == pytest.approx(found.checkpoint, rel=0.15)
    assert dry_run(load_recipe("webshop-qwen2.5-7b-fsdp"), 8).checkpoint_per_rank == pytest.approx(
        dry_run(load_recipe("webshop-qwen2.5-7b-fsdp"), 8).checkpoint / 8
    )


def test_the_cache_of_a_token() -> None:
    assert dry_run(load_recipe("code-qwen3-4b"), device_gib=200).kv_bytes_per_token == 2 * 36 * 8 * 128 * 2
    on_cpu = dry_run(load_recipe("code-qwen3-4b"))
    assert on_cpu.kv_bytes_per_token == 2 * 36 * 8 * 128 * 4, "the engine's own choice on a CPU is float32"
    with_vllm = apply_overrides(load_recipe("code-qwen3-4b"), ["engine.kind=vllm", 'engine.urls=["http://h:1"]'])
    found = dry_run(with_vllm)
    assert (found.memory.kv_cache, found.memory.engine_weights) == (0, 0)
    assert found.kv_cache == 32 * 5120 * found.kv_bytes_per_token


def test_packed_matrices_of_the_engine_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = apply_overrides(load_recipe("household-demo"), ["engine.dtype=float32"])
    sizes, weights = plan_model(config.model)
    found = {}
    for is_packed in (False, True):
        monkeypatch.setattr("agentgym.trainers.planning.footprint.leaves_avx512_unused", lambda made=is_packed: made)
        found[is_packed] = [
            footprint(config, sizes, weights, 1, on_gpu=on_gpu).engine_weights for on_gpu in (False, True)
        ]
    ends = sizes.layers * sizes.hidden * (sizes.heads + sizes.intermediate) + sizes.vocab * sizes.hidden
    assert found[True][0] - found[False][0] == 4 * ends
    assert found[True][1] == found[False][1]
    config = apply_overrides(config, ["engine.dtype=bfloat16"])
    for is_packed in (False, True):
        monkeypatch.setattr("agentgym.trainers.planning.footprint.multiplies_bfloat16", lambda made=is_packed: made)
        found[is_packed] = [
            footprint(config, sizes, weights, 1, on_gpu=on_gpu).engine_weights for on_gpu in (False, True)
        ]
    assert found[True][0] - found[False][0] == 2 * sizes.vocab * sizes.hidden, "the head alone is kept twice"
    assert found[True][1] == found[False][1]


def test_a_ranks_cache_holds_its_share_of_the_episodes() -> None:
    config = load_recipe("webshop-qwen2.5-7b-fsdp")
    row = dry_run(config).kv_bytes_per_token * config.model.max_context_tokens
    num_rows = {(1, ""): 66, (8, ""): 10, (3, ""): 24, (8, "ranks.rollouts=first"): 66}
    for (num_ranks, more), count in num_rows.items():
        found = dry_run(apply_overrides(config, [more] if more else []), num_ranks)
        assert found.memory.kv_cache == count * row
        assert found.kv_cache == count * row * (1 if more else num_ranks), "over all engines"
    assert dry_run(apply_overrides(config, ["cluster.address=auto"]), 8).memory.kv_cache == 66 * row, "on the cluster"


def test_what_cannot_be(tmp_path: Path) -> None:
    with_trl = ["sft.trainer=trl", "sft.num_demos=8", "sft.observation_weight=0"]
    with pytest.raises(ConfigError, match=r"8 ranks cannot train with sft\.trainer=trl"):
        dry_run(apply_overrides(load_recipe("alfworld-qwen2.5-1.5b"), with_trl), 8)
    with pytest.raises(UsageError, match=r"needs [0-9.]+ GiB .* has 8 .*engine.kind=vllm"):
        dry_run(load_recipe("alfworld-qwen2.5-1.5b"), device_gib=8)
    with pytest.raises(UsageError, match=r"keys and values [0-9.]+, .* GiB stay with any number of ranks") as no:
        dry_run(apply_overrides(load_recipe("webshop-qwen2.5-7b-fsdp"), ["ranks.rollouts=first"]), 8, device_gib=40)
    assert "more ranks" not in str(no.value) and "a smaller group.num_envs" in str(no.value)
    with pytest.raises(UsageError, match=r"most of it: [^;]*; try .*more ranks"):
        dry_run(load_recipe("webshop-qwen2.5-7b-fsdp"), 2, device_gib=80)
    unknown = apply_overrides(load_recipe("finetune"), ["model.path=Qwen/Qwen9-1B"])
    with pytest.raises(UsageError, match=r"sizes are known only of Qwen/Qwen2\.5-0\.5B-Instruct"):
        dry_run(unknown)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CorruptDataError, match=r"config\.json cannot be read"):
        dry_run(apply_overrides(load_recipe("finetune"), [f"model.path={tmp_path}"]))
    wrong = apply_overrides(load_recipe("finetune"), ['model.lora.target_modules=["query"]'])
    with pytest.raises(UsageError, match="query"):
        dry_run(wrong)
    with pytest.raises(UsageError, match=r"unknown tool-call format 'compct'; did you mean 'compact'"):
        dry_run(apply_overrides(load_recipe("smollm2-guess"), ["model.codec=compct"]))


def test_a_folder_says_its_own_sizes(tmp_path: Path) -> None:
    model = tiny("qwen3", 2)
    model.config.save_pretrained(tmp_path)
    config = apply_overrides(load_recipe("tiny"), [f"model.path={tmp_path}"])
    found = dry_run(config)
    assert found.num_parameters == sum(p.numel() for p in model.parameters())
    assert found.downloads == ()


def test_a_plan_takes_what_a_run_takes_as_its_model(tmp_path: Path) -> None:
    run, model = tmp_path / "run", tmp_path / "run" / "model"
    AutoConfig.for_model("qwen2", vocab_size=64, num_hidden_layers=1, **TINY["qwen2"]).save_pretrained(model)
    (run / "config.json").write_text('{"recipe": "finetune", "env": {}}')
    config = apply_overrides(load_recipe("finetune"), ["model.lora.rank=0", f"model.path={run}"])
    assert (
        dry_run(config).num_parameters
        == dry_run(replace(config, model=replace(config.model, path=str(model)))).num_parameters
    )
    (model / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UsageError, match="has no chat template"):
        dry_run(config)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(UsageError, match=r"chat template is unknown.*model\.codec=NAME"):
        dry_run(config)
    (model / "chat_template.jinja").write_text("{#- codec: compact -#}")
    dry_run(config)
    long = dry_run(apply_overrides(config, ["model.max_context_tokens=32769"])).context_note
    assert "has positions for 32768 tokens, and model.max_context_tokens is 32769" in long
    assert not dry_run(apply_overrides(config, ["model.max_context_tokens=32768"])).context_note
    (adapters := tmp_path / "adapters").mkdir()
    (adapters / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match="does not name the model that the adapters are for"):
        dry_run(replace(config, model=replace(config.model, path=str(adapters))))


def test_a_cpu_that_samples_a_step_for_minutes_says_so() -> None:
    base = ["model.path=Qwen/Qwen2.5-0.5B-Instruct", "groups_per_step=4", "group.group_size=8"]
    long = apply_overrides(load_recipe("finetune"), [*base, "env.kwargs.max_turns=10"])
    note = dry_run(long).pace_note
    assert note.startswith("note: a step may sample 81,920 tokens, for which a CPU takes some 42 minutes")
    assert "sampling.max_new_tokens (256), calls in one line (model.codec=compact), fewer episodes" in note
    short = apply_overrides(long, ["sampling.max_new_tokens=16", "model.codec=compact"])
    assert not dry_run(short).pace_note and not dry_run(long, device_gib=24).pace_note
    compact = "calls in one line"
    own = pace_note(long, 10**9, on_gpu=False, chat_template="{#- codec: compact -#}{{ messages }}")
    assert own and compact not in own, "model.codec=auto takes the template's"
    scratch = pace_note(apply_overrides(long, ["model.path="]), 10**9, on_gpu=False)
    assert scratch and compact not in scratch
    assert "some 3 hours" in dry_run(apply_overrides(long, ["group.group_size=32"])).pace_note


def test_an_environment_that_only_a_server_knows_is_planned() -> None:
    overrides = ["env.id=Nowhere-v0", 'env.kwargs.url="ws://127.0.0.1:9"']
    plan = dry_run(apply_overrides(load_recipe("tiny"), overrides))
    assert (plan.env, plan.sampled_per_step, plan.downloads) == ("Nowhere-v0", None, ())
    with pytest.raises(UnknownNameError, match="unknown environment 'Nowhere-v0'"):
        dry_run(apply_overrides(load_recipe("tiny"), overrides[:1]))


def test_a_rank_gathers_what_it_computes_with() -> None:
    """In bfloat16 shards are rounded before they are gathered, and frozen weights have no gradients."""
    base = load_recipe("webshop-qwen2.5-7b-fsdp")
    adapted = replace(base, model=replace(base.model, lora=replace(base.model.lora, rank=8)))
    sizes, weights = plan_model(adapted.model)
    root, layer = weights.all - sizes.layers * weights.layer, weights.layer
    of_layer = weights.adapters // sizes.layers
    on_gpu, exact = (footprint(adapted, sizes, weights, 8, on_gpu=is_gpu).gathered for is_gpu in (True, False))
    assert (on_gpu, exact) == (2 * (root + 2 * layer) + 4 * of_layer, 4 * (root + 2 * layer) + 4 * of_layer)
    own = footprint(base, *plan_model(base.model), 8, on_gpu=True).gathered
    assert own == 2 * (root + 2 * (layer - of_layer)) + 4 * (root + layer - of_layer)


def test_matrices_of_four_bits_are_whole_on_every_rank() -> None:
    base = load_recipe("webshop-qwen2.5-7b-fsdp")
    lora = replace(base.model.lora, rank=8, quantize="nf4")
    packed = replace(base, model=replace(base.model, lora=lora))
    sizes, weights = plan_model(packed.model)
    one, eight = (footprint(packed, sizes, weights, number, on_gpu=True).weights for number in (1, 8))
    shared = 4 * (weights.all - weights.matrices)
    assert one - eight == pytest.approx(shared * 7 / 8, rel=1e-6)


def test_a_plan_that_does_not_fit_is_printed(warm_agentgym: Any) -> None:
    done = warm_agentgym("train", "alfworld-qwen2.5-1.5b", "--dry-run", "--device-gib", "8")
    assert done.returncode == 2 and "GiB on the first rank and the device has 8" in done.stderr
    assert "gradients, GiB" in done.stdout and "optimizer, GiB" in done.stdout


def test_settings_are_proposed_for_given_gpus() -> None:
    plan = apply_overrides(load_recipe("finetune"), ["env.id=agentgym/Maze-v0", "model.path=Qwen/Qwen2.5-7B-Instruct"])
    found = dry_run(plan, num_ranks=4, device_gib=80).proposal
    assert found.startswith("torchrun --nproc-per-node 4 -m agentgym train finetune ... ")
    settings = [word for word in found.split() if word.startswith("loss.")]
    assert dry_run(apply_overrides(plan, settings), num_ranks=4, device_gib=80).memory.total <= 80 * GIB
    assert not dry_run(plan, num_ranks=4).proposal
    # a GPU that is too small for the plan as it is, and not for other settings of it
    smallest = apply_overrides(plan, ["loss.recompute_activations=true", "group.num_envs=1"])
    room = dry_run(smallest, num_ranks=1).memory.total / GIB
    with pytest.raises(
        UsageError, match=r"It fits one such GPU with .* GiB each: agentgym train finetune \.\.\. loss\.rec"
    ):
        dry_run(plan, num_ranks=1, device_gib=round(room + 3))
