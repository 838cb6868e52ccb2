"""Checks of speed and memory: sampling, reading prompts, training, publishing weights, sharding.

A limit is a multiple of what the machine's bandwidth or matrix rate, measured in the same run, would allow. On a CPU
limits of speed are left open: there the rows show that the checks run.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from engine import NUM_PROMPT_TOKENS, SHAPES, build, copy_bandwidth, engine_speed, step_bytes, synchronize
from rows import Row
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from train import episodes, matmul_flops, num_operations, seen_by_each, step_seconds

from agentgym.engine import SamplingParams
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.devices import on_background_thread
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import shard_over, whole
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.decoder import Sizes, count_weights
from agentgym.trainers.models.model import add_lora, plain_model
from agentgym.trainers.models.precision import allow_tf32, skip_adapter_casts, use_fused_attention
from agentgym.trainers.planning.footprint import footprint
from agentgym.trainers.recipes import load_recipe

GIB = 2**30
FOLDER_SECONDS_PER_GIB = 10.0
PLAN_ERROR = 0.15
SAMPLING_LIMITS = {"0.5B": 8.0, "1.5B": 4.0, "tiny": math.inf}
READING_LIMIT, TRAINING_LIMIT, UNEVEN_LIMIT = 5.0, 4.0, 6.0
"""Limits, as multiples of the seconds that bandwidth, or one large matrix multiplication, would allow. A small model's
step is bound by the number of its kernels. Rows that share a prefix are uneven, and adapters are small matrices."""


def _limit(device: torch.device, limit: float) -> float:
    return limit if device.type == "cuda" else math.inf


def sampling(device: torch.device, shape: str) -> Iterator[Row]:
    """Measure the seconds of a sampled token, divided by those that the memory's bandwidth allows."""
    torch._dynamo.reset()  # of other models' layers: torch compiles a function eight times, then no more
    is_gpu = device.type == "cuda"
    num_new = 192 if is_gpu else 8
    bandwidth = copy_bandwidth(device, 2**30 if is_gpu else 2**23)
    for name, num_rows in product(("0.5B", "1.5B") if is_gpu else (shape,), (1, 16, 64) if is_gpu else (1, 2)):
        model = build(name, device)
        limit = num_rows * bandwidth / step_bytes(model, num_rows, NUM_PROMPT_TOKENS + num_new / 2)
        speed = engine_speed(model, num_rows, num_new, is_fixed=True)
        yield Row(
            f"sampling, {name}, {num_rows} rows: times the memory's limit",
            limit / speed,
            _limit(device, SAMPLING_LIMITS[name]),
            f"{speed:,.0f} tokens/s, {speed / limit:.0%} of the limit",
        )


def reading(device: torch.device, shape: str) -> Iterator[Row]:
    """Measure reading the prompts of ten-turn episodes in sessions, relative to one large matrix multiplication."""
    num_rows, num_turns, turn = (16, 10, 256) if device.type == "cuda" else (2, 3, 8)
    model, vocab = build(shape, device), SHAPES[shape]["vocab_size"]
    engine = TorchEngine(model, num_slots=num_rows, max_context_tokens=num_turns * (turn + 2), max_prefill_tokens=16384)
    drawn = torch.randint(vocab, (num_rows, num_turns, turn), generator=torch.Generator().manual_seed(1)).tolist()

    async def episode(row: int, session: str) -> None:
        ids: list[int] = []
        for at in range(num_turns):
            ids += drawn[row][at]
            done = await engine.generate(ids, SamplingParams(max_new_tokens=1, seed=row), session_id=session)
            ids += done.token_ids

    async def play(number: int) -> float:
        start = time.perf_counter()
        await asyncio.gather(*(episode(row, f"{number}-{row}") for row in range(num_rows)))
        synchronize(device)
        return time.perf_counter() - start

    seconds = min(asyncio.run(play(number)) for number in range(3))
    asyncio.run(engine.close())
    num_tokens = num_rows * num_turns * (turn + 1)
    weights = sum(parameter.numel() for parameter in model.parameters())
    rate = matmul_flops(device, torch.bfloat16, 8192 if device.type == "cuda" else 64)
    yield Row(
        f"reading {num_turns} turns of {turn} tokens: times the matrix limit",
        seconds * rate / (2 * weights * num_tokens),
        _limit(device, READING_LIMIT),
        f"{num_tokens / seconds:,.0f} tokens/s",
    )


def training(device: torch.device, shape: str) -> Iterator[Row]:
    """Measure an optimizer step: time relative to a large matrix multiplication, and peak memory to the plan."""
    is_gpu = device.type == "cuda"
    groups, prompt, turns, turn, size = (2, 512, 10, 160, 8192) if is_gpu else (1, 16, 2, 8, 64)
    shape = "1.5B" if is_gpu else shape
    samples = episodes(groups, prompt, turns, turn, SHAPES[shape]["vocab_size"])
    num_sampled = sum(len(sample.positions) for sample in samples)
    for precision, is_lora, layout in (
        *(("float32_ieee", False, "rows"), ("float32", False, "rows"), ("bfloat16", False, "rows")),
        *(("bfloat16", False, "prefix"), ("bfloat16", False, "packed"), ("bfloat16", True, "packed")),
    ):
        allow_tf32(precision)  # type: ignore[arg-type]
        model = add_lora(build(shape, device).float(), LoraSettings(rank=16 if is_lora else 0), 0)
        use_fused_attention(model)
        skip_adapter_casts(model, precision)  # type: ignore[arg-type]
        run = apply_overrides(
            load_recipe("household-demo"),
            [f"loss.layout={layout}", f"loss.precision={precision}", "loss.tokens_per_microbatch=8192"],
        )
        if is_gpu:
            torch.cuda.reset_peak_memory_stats()
        num_rounds = 2 if is_gpu and precision != "float32_ieee" else 1
        taken = statistics.median(step_seconds(model, samples, run.loss, num_rounds))
        counted = "rows" if layout == "rows" else "packed"
        operations = num_operations(shape, seen_by_each(samples, counted), num_sampled, is_lora=is_lora)
        rate = matmul_flops(device, torch.bfloat16 if precision == "bfloat16" else torch.float32, size)
        name = f"step, {precision}, {layout}, {'LoRA' if is_lora else 'all weights'}"
        note = f"{taken:.3f} s, {operations / taken / 1e12:.1f} TFLOP/s, {operations / taken / rate:.0%} of a matrix's"
        limit = _limit(device, UNEVEN_LIMIT if is_lora or layout == "prefix" else TRAINING_LIMIT)
        yield Row(f"{name}: times the matrix limit", taken * rate / operations, limit, note)
        if is_gpu and not is_lora:
            yield _against_plan(name, run, shape, torch.cuda.max_memory_allocated())
        del model
        if is_gpu:
            torch.cuda.empty_cache()


def _against_plan(name: str, run: TrainConfig, shape: str, peak: int) -> Row:
    sizes = Sizes.read({**SHAPES[shape], "model_type": "qwen2", "tie_word_embeddings": True})
    plan = footprint(run, sizes, count_weights(sizes, run.model.lora), 1, on_gpu=True)
    planned = plan.without_engine
    note = f"{peak / GIB:.1f} GiB, planned {planned / GIB:.1f}"
    return Row(f"{name}: peak memory against the plan", abs(peak / planned - 1), PLAN_ERROR, note)


def publication(device: torch.device, shape: str) -> Iterator[Row]:
    """Measure writing weights for servers: the whole model in a folder, and adapters alone."""
    model = add_lora(build(shape, device), LoraSettings(rank=16), 0)
    for what, save in (
        ("folder", lambda path: plain_model(model).save_pretrained(path)),
        ("lora", model.save_pretrained),
    ):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            save(Path(folder))
            seconds = time.perf_counter() - start
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        note = f"{size / GIB:.3f} GiB in {seconds:.2f} s"
        allowed = _limit(device, FOLDER_SECONDS_PER_GIB * max(size / GIB, 0.1))
        yield Row(f"weights by {what}: seconds", seconds, allowed, note)


def sharding(device: torch.device, shape: str) -> Iterator[Row]:
    """Compare the gradient of FSDP2 on one rank, in a thread as in async training, with the plain model's."""
    config = LossConfig(tokens_per_microbatch=2048)
    samples = episodes(1, 16, 2, 8, SHAPES[shape]["vocab_size"])
    gradients: list[torch.Tensor] = []
    with tempfile.TemporaryDirectory() as folder:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        try:
            for is_sharded in (False, True):
                model: Any = build(shape, device).float()
                use_fused_attention(model)
                if is_sharded:
                    mesh = init_device_mesh(device.type, (1,))
                    model = shard_over(model, None, Ranks(), mesh, MixedPrecisionPolicy())
                work = on_background_thread(partial(step_seconds, model, samples, config, 0))
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(work).result()
                gradients.append(whole(model.model.layers[0].self_attn.q_proj.weight.grad).flatten().float())
        finally:
            dist.destroy_process_group()
    yield Row("FSDP2 on one rank in a thread: gradient", 1 - F.cosine_similarity(*gradients, dim=0).item(), 1e-3)


CHECKS = (sampling, reading, training, publication, sharding)
