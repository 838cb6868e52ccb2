"""The size of a micro-batch is chosen for model and device, once, and by the plan as by the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from testkit.counting_runs import config
from transformers import AutoConfig

from agentgym.errors import ConfigError
from agentgym.trainers.config.overrides import apply_overrides, load_config
from agentgym.trainers.config.train import MixedEnv, TrainConfig
from agentgym.trainers.data import spread
from agentgym.trainers.data.plan import plan_batches
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.phases import update_step
from agentgym.trainers.planning.dry_run import GIB, dry_run
from agentgym.trainers.planning.footprint import activation_bytes, footprint
from agentgym.trainers.planning.microbatch import LARGEST_PACKED, planned_tokens, tokens_note, with_tokens
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run import run as run_module
from agentgym.trainers.run.run import Run
from agentgym.trainers.train import train

Value = TypeVar("Value")


def recipe(name: str, *overrides: str) -> TrainConfig:
    return apply_overrides(load_recipe(name), overrides)


@pytest.mark.parametrize(
    ("name", "overrides", "tokens"),
    [
        ("tiny", (), 8192),
        ("household-demo", (), 8192),
        ("smollm2-guess", (), 2048),
        ("smollm2-household", (), 2048),
        ("smollm2-guess", ("loss.recompute_activations=true",), 8192),
        ("smollm2-guess", ("model.lora.rank=512",), 1024),
    ],
)
def test_on_a_cpu_it_is_the_largest_that_fits_a_laptop(name: str, overrides: tuple[str, ...], tokens: int) -> None:
    assert planned_tokens(recipe(name, *overrides), 1, 0) == tokens


@pytest.mark.parametrize("gib", [8, 24, 80, 140])
def test_on_a_gpu_it_takes_half_of_what_the_rest_of_the_plan_leaves(gib: int) -> None:
    made = recipe("smollm2-guess")

    def taken(tokens: int) -> tuple[int, int]:
        found = footprint(with_tokens(made, tokens), *plan_model(made.model), 1, on_gpu=True)
        return found.activations + found.logits, found.total

    tokens = planned_tokens(made, 1, gib * GIB)
    own, total = taken(tokens)
    assert own <= (gib * GIB - (total - own)) / 2
    assert tokens == 65_536 or taken(2 * tokens)[0] > (gib * GIB - (total - own)) / 2
    assert tokens >= 1024 and tokens.bit_count() == 1


def test_on_a_gpu_it_is_between_1024_and_65536() -> None:
    assert planned_tokens(recipe("smollm2-guess"), 1, 140 * GIB) > 8192, "more than a CPU's"
    assert planned_tokens(recipe("tiny"), 1, 24 * GIB) == 65_536
    assert planned_tokens(recipe("tiny", "loss.layout=packed"), 1, 24 * GIB) == LARGEST_PACKED
    assert planned_tokens(recipe("smollm2-guess"), 1, 2 * GIB) == 1024, "although the rest alone takes more"


def test_what_the_ranks_hold_together_leaves_room_for_tokens() -> None:
    made = recipe("webshop-qwen2.5-7b-fsdp")
    sixteen, eight = (planned_tokens(made, num_ranks, 64 * GIB) for num_ranks in (16, 8))
    assert sixteen > eight


@pytest.mark.parametrize("gpu_bytes", [0, GIB])
def test_it_is_never_less_than_the_longest_row(gpu_bytes: int) -> None:
    long = recipe("smollm2-guess", "model.max_context_tokens=5000")
    assert planned_tokens(long, 1, gpu_bytes) == 5000
    windows = replace(long, context=replace(long.context, window_tokens=600))
    assert planned_tokens(windows, 1, gpu_bytes) < 5000
    mixed = replace(windows, envs=(MixedEnv(id=long.env.id, context={"window_tokens": 3000}),))
    assert planned_tokens(mixed, 1, gpu_bytes) == 3000


@pytest.mark.parametrize("gpu_bytes", [0, 140 * GIB])
def test_a_number_of_the_configuration_is_kept(gpu_bytes: int) -> None:
    made = recipe("smollm2-guess", "loss.tokens_per_microbatch=100")
    assert planned_tokens(made, 1, gpu_bytes) == 100
    assert dry_run(made, device_gib=gpu_bytes / GIB).tokens_per_microbatch == 100
    assert not tokens_note(made, 100, gpu_bytes)


@pytest.mark.parametrize("value", ["0", "-1", "large"])
def test_other_values_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"loss\.tokens_per_microbatch"):
        recipe("tiny", f"loss.tokens_per_microbatch={value}")


def test_no_schedule_changes_it() -> None:
    schedule = '{"key": "loss.tokens_per_microbatch", "from": 64, "to": 128, "steps": 2}'
    with pytest.raises(ConfigError, match=r"loss\.tokens_per_microbatch is not read at every step"):
        recipe("tiny", f"schedules=[{schedule}]")


@pytest.mark.parametrize("kind", ["mamba", "no_such_kind"])
def test_a_model_whose_sizes_cannot_be_read_has_8192(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_kind"}')
    if kind == "mamba":
        AutoConfig.for_model(kind, vocab_size=64).save_pretrained(tmp_path)
    assert planned_tokens(recipe("tiny", f"model.path={tmp_path}"), 1, 140 * GIB) == 8192


def test_a_loss_outside_of_a_run_has_8192() -> None:
    assert (LossConfig().microbatch_tokens, LossConfig(tokens_per_microbatch=7).microbatch_tokens) == (8192, 7)


# --------------------------------------------------------------------------------------------------- plans and runs


def test_the_plan_counts_with_the_number() -> None:
    made = recipe("smollm2-guess")
    sizes, _ = plan_model(made.model)
    found = dry_run(made)
    assert found.as_dict()["tokens_per_microbatch"] == 2048
    assert found.memory.activations == found.activations_kept == activation_bytes(sizes, 2048, recompute=False)
    on_gpu = dry_run(made, device_gib=80)
    assert on_gpu.tokens_per_microbatch == planned_tokens(made, 1, 80 * GIB) > 2048
    assert on_gpu.memory.activations > found.memory.activations


class Uneven(Ranks):
    """A rank beside one whose GPU has room for 4,096 tokens."""

    def gathered(self, value: Value) -> list[Value]:
        other: Any = 4096
        return [value, other] if isinstance(value, int) else [value]


def test_all_ranks_take_the_smallest_number(tmp_path: Path) -> None:
    assert Run(config(), tmp_path).config.loss.tokens_per_microbatch == 8192
    assert Run(config(), tmp_path, Uneven()).config.loss.tokens_per_microbatch == 4096


def test_a_run_trains_with_the_number_and_says_it_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "gpu_bytes", lambda: 24 * GIB)
    used: list[int] = []

    def note_batches(*args: Any, tokens_per_microbatch: int, **more: Any) -> Any:
        used.append(tokens_per_microbatch)
        return plan_batches(*args, tokens_per_microbatch=tokens_per_microbatch, **more)

    monkeypatch.setattr(update_step, "plan_batches", note_batches)
    monkeypatch.setattr(spread, "plan_batches", note_batches)
    base = config(num_steps=1, zero_variance_filter="off")
    made = replace(base, loss=replace(base.loss, echo=0.1))
    train(made, tmp_path / "run")
    assert len(used) >= 2 and set(used) == {65_536}
    assert "micro-batches of 65,536 tokens, chosen for a GPU of 24 GiB" in capsys.readouterr().err
    assert load_config(tmp_path / "run" / "config.json") == made, "auto, so that it can be resumed on another device"
    train(replace(made, num_steps=2), tmp_path / "run", resume=True)
    assert set(used) == {65_536}


def test_on_a_cpu_nothing_is_said() -> None:
    assert not tokens_note(recipe("smollm2-guess"), 2048, 0)
