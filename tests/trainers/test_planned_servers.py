"""What is left of a GPU for a vLLM server beside the trainer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch

from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.placement.servers import files_note
from agentgym.trainers.planning.dry_run import dry_run
from agentgym.trainers.planning.footprint import engine_cache, footprint
from agentgym.trainers.planning.microbatch import auto_tokens, with_tokens
from agentgym.trainers.planning.servers import (
    MARGIN,
    NUM_CACHES,
    SERVER_OWN,
    serve_command,
    serve_commands,
    server_share,
    servers_note,
)
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run

GIB = 1 << 30
URL = 'engine.urls=["http://127.0.0.1:8000"]'
MANY = ("group.num_envs=8192",)
"""So many episodes use all memory that is left."""


def config(*more: str, gib: int = 80) -> TrainConfig:
    made = apply_overrides(
        load_recipe("household-smoke"),
        ["model.path=Qwen/Qwen2.5-1.5B-Instruct", "engine.kind=vllm", URL, *more],
    )
    sizes, weights = plan_model(made.model)
    return with_tokens(made, auto_tokens(made, sizes, weights, 1, gib * GIB))


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("gib", [60, 80, 140])
def test_trainer_and_server_fit_the_gpu_together(gib: int, sleeps: bool) -> None:
    run = config("engine.weight_sync=ipc", f"engine.sleep={str(sleeps).lower()}", *MANY, gib=gib)
    share = server_share(run, 1, gib * GIB)
    assert share is not None and share > 0.1
    sizes, weights = plan_model(run.model)
    plan = footprint(run, sizes, weights, 1, on_gpu=True)
    held = plan.weights + plan.optimizer if sleeps else plan.total
    copy = 2 * weights.own if sleeps else 0  # which the total has
    left = gib * GIB * (1 - share) - held - copy - MARGIN
    assert 0 <= left <= 0.011 * gib * GIB


def test_a_server_that_sleeps_may_take_more() -> None:
    awake, asleep = (
        server_share(config("engine.weight_sync=ipc", f"engine.sleep={sleep}", *MANY), 1, 80 * GIB)
        for sleep in ("false", "true")
    )
    assert awake is not None and asleep is not None and 0.1 < awake < asleep - 0.1


def test_a_server_gets_no_more_than_its_episodes_can_use() -> None:
    run = config("engine.weight_sync=ipc", "engine.sleep=true", gib=140)
    share = server_share(run, 1, 140 * GIB)
    assert share is not None and share < 0.2
    sizes, weights = plan_model(run.model)
    needed = 2 * weights.own + NUM_CACHES * engine_cache(run, sizes, 1) + SERVER_OWN
    assert 0 <= 140 * GIB * share - needed <= 0.01 * 140 * GIB


@pytest.mark.parametrize(
    ("more", "gpu_bytes"),
    [
        ((), 80 * GIB),  # servers may be anywhere
        (("engine.weight_sync=nccl",), 80 * GIB),  # on other GPUs
        (("engine.weight_sync=ipc",), 0),
    ],
)
def test_without_a_gpu_to_share_there_is_no_share(more: tuple[str, ...], gpu_bytes: int) -> None:
    assert server_share(config(*more), 1, gpu_bytes) is None


def test_gradients_are_dropped_before_servers_wake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(apply_overrides(load_recipe("tiny"), ["engine.kind=vllm", URL, "engine.sleep=true"]), tmp_path)
    for parameter in run.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    held: list[bool] = []

    async def update(version: int) -> None:
        held.extend(parameter.grad is not None for parameter in run.model.parameters())

    monkeypatch.setattr(run.engine, "update_weights", update)
    asyncio.run(run.policy.update(1))
    assert held and not any(held)


def test_where_nothing_is_left_the_run_says_what_to_do() -> None:
    run = config("engine.weight_sync=ipc", gib=30)
    assert server_share(run, 1, 30 * GIB) == 0
    note = servers_note(run, 0.0, 30 * GIB)
    assert "leaves too little" in note and "engine.sleep=true; loss.recompute_activations=true" in note
    assert "--gpu-memory" not in serve_command("m", "http://127.0.0.1:8000", run, 0.0)


def test_a_share_holds_the_weights_and_servers_of_one_gpu_divide_it() -> None:
    two = 'engine.urls=["http://127.0.0.1:8000", "http://127.0.0.1:8001"]'
    for more in ("engine.sleep=true", "engine.weight_sync=ipc"):
        one, each = (server_share(config(more, *MANY, *urls), 1, 80 * GIB) for urls in ((), (two,)))
        assert one is not None and each is not None and 0 < each <= one / 2 + 0.01
        assert server_share(config(more, *MANY, two), 2, 80 * GIB) != each, "each rank has a GPU, and one server on it"
    wide = [*("engine.weight_sync=ipc", "model.path=Qwen/Qwen2.5-7B-Instruct"), "loss.tokens_per_microbatch=65536"]
    assert server_share(apply_overrides(config(), wide), 1, 140 * GIB) == 0, "6 % would not hold 14 GiB of weights"


def test_micro_batches_leave_room_for_a_server_that_stays_awake() -> None:
    alone, beside, asleep = (
        config(*more, "model.path=Qwen/Qwen3-4B", gib=140).loss.microbatch_tokens
        for more in ((), ("engine.weight_sync=ipc",), ("engine.sleep=true",))
    )
    assert beside < alone == asleep


def test_commands_are_for_the_machine_of_the_server() -> None:
    run = config()
    assert "--host 10.0.0.2" in serve_command("m", "http://10.0.0.2:8000", run)
    assert "--host" not in serve_command("m", "http://localhost:8000", run)
    assert "first GPU that it sees" in servers_note(run, None, 80 * GIB)
    there = apply_overrides(run, ['engine.urls=["http://10.0.0.2:8000"]'])
    assert servers_note(there, None, 80 * GIB) == servers_note(run, None, 0) == ""


def test_the_share_is_in_the_command_that_starts_the_server() -> None:
    run = config("engine.weight_sync=ipc", "engine.sleep=true")
    said = serve_command("m", "http://127.0.0.1:8000", run, 0.6)
    assert said.endswith("--weight-transfer ipc --sleep -- --gpu-memory-utilization 0.6")


def test_the_servers_of_several_ranks_are_on_their_gpus() -> None:
    urls = json.dumps([f"http://127.0.0.1:{8000 + rank}" for rank in range(4)])
    run = apply_overrides(config("engine.weight_sync=ipc", "engine.sleep=true"), [f"engine.urls={urls}"])
    said = serve_commands("m", run, 0.5, num_ranks=4, num_gpus=2)
    begin = [command.partition(" --max")[0] for command in said]
    assert begin == [
        f"CUDA_VISIBLE_DEVICES={rank % 2} agentgym serve-model m --port {8000 + rank}" for rank in range(4)
    ]
    for alone in (serve_commands("m", run, 0.5, 1, 1), serve_commands("m", run, None, 4, 4)):
        assert all(command.startswith("agentgym serve-model m") for command in alone)


def test_a_plan_names_the_command_of_every_server_and_says_if_none_fits() -> None:
    ways = ["engine.weight_sync=ipc", "engine.sleep=true", 'engine.urls=["http://127.0.0.1:8000"]', "engine.kind=vllm"]
    run = apply_overrides(load_recipe("household-smoke"), ["model.path=Qwen/Qwen2.5-1.5B-Instruct", *ways])
    found = dry_run(run, device_gib=80)
    (command,) = found.servers
    assert command.startswith("agentgym serve-model Qwen/Qwen2.5-1.5B-Instruct --port 8000")
    assert "--gpu-memory-utilization 0." in command and not found.servers_note
    full = dry_run(apply_overrides(run, ["engine.sleep=false"]), device_gib=36)
    assert "--gpu-memory-utilization" not in full.servers[0] and "leaves too little" in full.servers_note
    own = apply_overrides(load_recipe("tiny"), ways[2:])
    assert dry_run(own).servers[0].startswith("agentgym serve-model RUN/weights/model --port 8000")
    assert dry_run(load_recipe("tiny")).servers == ()


def test_a_trainer_with_a_gpu_hears_that_files_are_slow() -> None:
    note = files_note(config(), on_gpu=True)
    assert "engine.weight_sync=ipc" in note and "engine.weight_sync=nccl" in note and "lora" not in note
    assert "engine.weight_sync=lora" in files_note(config("model.lora.rank=8"), on_gpu=True)
    assert files_note(config(), on_gpu=False) == files_note(config("engine.weight_sync=ipc"), on_gpu=True) == ""
