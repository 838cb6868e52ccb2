"""Checks of vLLM servers that get the trainer's weights; part of ``check.py``, and skipped where vLLM is not installed.

Every way of ``engine.weight_sync`` is tried with a server of its own: the weights are replaced several times, and what
the server samples is compared with the trainer's own forward pass. Requests are kept over an update. Short
runs train with a server that samples meanwhile; ``real_model.py`` has one that sleeps.

NCCL joins two GPUs. On a machine with one, both processes use it: NCCL is told that they are on different machines
(``NCCL_HOSTID``), and sends everything over the loopback network. This shows that the calls work, not how fast they
are.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ranked
import torch
from rows import Row, skipped

from agentgym.engine import SamplingParams
from agentgym.errors import UsageError
from agentgym.ports import free_port
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.vllm.in_flight import tokens_given
from agentgym.trainers.engines.vllm.launch import ServeOptions, VllmInstall, VllmProcess, find_vllm
from agentgym.trainers.engines.vllm.proof import rounded_to
from agentgym.trainers.engines.vllm.server import VllmEngine
from agentgym.trainers.models.kv_cache import cache_argument, cache_of
from agentgym.trainers.models.model import save_model
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run
from agentgym.types import Completion

GIB = 2**30
LORA_RANK = 16
NUM_UPDATES = 3
MAX_TRIES = 20
START_TIMEOUT_S = 300.0
UPDATE_TIMEOUT_S = 60.0
SIZES = {
    "tiny": {"hidden_size": 32, "num_layers": 1, "head_dim": 32, "vocab_size": 320},
    "0.5B": {"hidden_size": 896, "num_layers": 24, "head_dim": 64, "vocab_size": 320},
}
"""Layers of Qwen2.5-0.5B's width; the recipe's own small tokenizer."""
CONTEXT = 512
NUM_PLAYERS, NUM_COMPARED = 32, 8
FLOAT32_GAP = 1e-4
BFLOAT16_GAP = 0.1
"""Largest mean difference of log-probabilities; with weights of another version it is above 1."""
SECONDS_PER_GIB = 30.0
"""Limit of an update: write or send the weights, load them, and prove that they are there."""


def servers(device: torch.device, shape: str) -> Iterator[Row]:
    """Update servers in every way. On a CPU ``AGENTGYM_VLLM_PYTHON`` must name vLLM's environment."""
    name = "vLLM servers: weights by folder, LoRA, IPC and NCCL"
    is_gpu = device.type == "cuda"
    if not is_gpu and not os.environ.get("AGENTGYM_VLLM_PYTHON"):
        yield skipped(name, "on a CPU AGENTGYM_VLLM_PYTHON must name the environment of vLLM")
        return
    try:
        install = find_vllm()
    except UsageError as error:
        yield skipped(name, str(error))
        return
    ways = ("ipc", "nccl", "folder", "lora") if is_gpu else ("folder", "lora")
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        runs = {way: Run(config_of(way, shape, free_port()), folder / way) for way in ways}
        short = short_run(is_gpu, [free_port() for _ in range(2 if is_gpu else 1)])
        of_short = {f"run-{n}": Run(with_urls(short, url), folder / "run") for n, url in enumerate(short.engine.urls)}
        started = time.perf_counter()
        with serving(install, {**runs, **of_short}, folder):
            print(f"servers start: {time.perf_counter() - started:.0f} s")
            for way, run in runs.items():
                yield from of_way(way, run, is_gpu)
            yield from of_runs(short, folder, is_gpu)


def config_of(way: str, shape: str, port: int) -> TrainConfig:
    """Return the settings of a run with one server."""
    lora = {"rank": LORA_RANK} if way == "lora" else {}
    model = {**SIZES.get(shape, SIZES["0.5B"]), "max_context_tokens": CONTEXT, "lora": lora}
    return apply_overrides(
        load_recipe("tiny"),
        [
            *("env.id=agentgym/GuessNumber-v0", "engine.kind=vllm", f"engine.weight_sync={way}"),
            *(f'engine.urls=["http://127.0.0.1:{port}"]', f"engine.update_timeout_s={UPDATE_TIMEOUT_S}"),
            f"model={json.dumps(model)}",
        ],
    )


@contextmanager
def serving(install: VllmInstall, runs: Mapping[str, Run], folder: Path) -> Iterator[None]:
    """Start a server for each run, all at the same time, and stop them at the end."""
    started = []
    try:
        for way, run in runs.items():
            save_model(run.model, run.tokenizer, folder / f"model-{way}")
            started.append(start(install, run.config, folder / f"model-{way}", folder / f"{way}.log"))
        for process in started:
            wait(process)
        yield
    finally:
        for process in started:
            process.stop()


def start(install: VllmInstall, config: TrainConfig, model: Path, log: Path) -> VllmProcess:
    """Start the server of a run."""
    engine = config.engine
    on_gpu = ("--enforce-eager", "--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(GIB))
    options = ServeOptions(
        model=str(model),
        port=int(engine.urls[0].rsplit(":", 1)[1]),
        max_context_tokens=config.model.max_context_tokens,
        lora_rank=config.model.lora.rank,
        weight_transfer=engine.weight_sync if engine.weight_sync in ("ipc", "nccl") else "",
        num_threads=1,
        cache_gib=1 / 32,
        extra=() if install.is_cpu else on_gpu,
    )
    with patch.dict(os.environ, elsewhere() if engine.weight_sync == "nccl" else {}):
        return VllmProcess(install, options, log)


def elsewhere() -> dict[str, str]:
    """Return the environment of a process that NCCL shall connect: on another GPU, or as if on another machine."""
    if torch.cuda.device_count() > 1:
        return {"CUDA_VISIBLE_DEVICES": "1"}
    return {"NCCL_HOSTID": "another"}


def wait(process: VllmProcess) -> None:
    """Wait for a server; show the end of its log if it does not come up."""
    try:
        process.wait_until_ready(START_TIMEOUT_S)
    except Exception:
        print(process.tail())
        raise


def of_way(way: str, run: Run, is_gpu: bool) -> Iterator[Row]:
    """Return the rows of one way to send weights."""
    limit = BFLOAT16_GAP if is_gpu else FLOAT32_GAP
    try:
        gaps, seconds = asyncio.run(updated(run))
    except Exception as error:
        traceback.print_exc()
        yield Row(f"vLLM, weights by {way}", float("nan"), 0.0, f"{type(error).__name__}: {error}")
        return
    yield Row(f"vLLM, weights by {way}: log-probabilities", max(gaps["after"]), limit)
    size = sum(p.numel() for p in run.model.parameters() if p.requires_grad) * 4 / GIB
    note = f"{size:.2f} GiB of float32 trained; {', '.join(f'{s:.2f}' for s in seconds)} s"
    yield Row(f"vLLM, weights by {way}: seconds", statistics.median(seconds), SECONDS_PER_GIB * max(size, 0.1), note)
    if way != "lora":  # whose requests are bound to their adapters
        kept, new = (statistics.fmean(gaps[name]) if gaps[name] else float("nan") for name in ("kept", "new"))
        note = f"{len(gaps['kept'])} requests with tokens of both; against the new weights alone {new:.2g}"
        yield Row(f"vLLM, weights by {way}: requests kept over an update", kept, limit, note)


async def updated(run: Run) -> tuple[dict[str, list[float]], list[float]]:
    """Return mean differences of log-probabilities after updates and of kept requests, and the seconds of updates."""
    engine = run.engine
    assert isinstance(engine, VllmEngine)
    gaps: dict[str, list[float]] = {"after": [], "kept": [], "new": []}
    seconds = []
    keeps = run.config.engine.weight_sync != "lora"
    try:
        await run.connect_engine(print)
        for version in range(NUM_UPDATES):
            replace_weights(run.model, version)
            started = time.perf_counter()
            await engine.update_weights(version)
            seconds.append(time.perf_counter() - started)
            gaps["after"] += [gap(run.model, *pair) for pair in await sampled(engine, 8, 32)]
        for version in range(NUM_UPDATES, NUM_UPDATES + MAX_TRIES if keeps else NUM_UPDATES):
            for name, found in (await kept_over_update(run, version)).items():
                gaps[name] += found
            if gaps["kept"]:  # where other programs hold up this one, all requests may end before the update
                break
    finally:
        await engine.close()
    return gaps, seconds


async def kept_over_update(run: Run, version: int) -> dict[str, list[float]]:
    """Update the weights while requests are in flight; return the differences of those with tokens of both."""
    engine = run.engine
    assert isinstance(engine, VllmEngine)
    gaps: dict[str, list[float]] = {"kept": [], "new": []}
    before = copy.deepcopy(run.model)
    updated = asyncio.Event()
    playing = [asyncio.create_task(sampled_until(updated, engine, seed)) for seed in range(NUM_PLAYERS)]
    while not has_begun(await tokens_given(engine._pool.servers[0].client, 60.0)):
        await asyncio.sleep(0.001)
    replace_weights(run.model, version)
    await engine.update_weights(version)
    updated.set()
    for prompt, done in await asyncio.gather(*playing):
        num_old = done.policy_versions.count(version - 1)
        if 0 < num_old < len(done.token_ids) and len(gaps["kept"]) < NUM_COMPARED:
            gaps["kept"].append(gap_of_both(before, run.model, prompt, done, num_old))
            gaps["new"].append(gap(run.model, prompt, done))
    return gaps


@torch.no_grad()
def replace_weights(model: Any, seed: int) -> None:
    """Draw every trained matrix again, so that a server with any older one would answer something else."""
    generator = torch.Generator(model.device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.ndim > 1:
            # adapters begin at zero and move a little
            std = 0.05 if ".lora_" in name else 1.0 / parameter.shape[-1] ** 0.5
            parameter.normal_(0.0, std, generator=generator)


async def sampled_until(updated: asyncio.Event, engine: VllmEngine, seed: int) -> tuple[list[int], Completion]:
    """Send requests one after the other, so that one is in flight during the update; return the last one."""
    while True:
        prompt = prompt_of(seed)
        done = await engine.generate(prompt, SamplingParams(max_new_tokens=CONTEXT - 64, seed=seed))
        if updated.is_set():
            return prompt, done
        seed += NUM_PLAYERS


def has_begun(counts: Mapping[str, int] | None) -> bool:
    """Return True if enough requests have tokens."""
    return sum(count > 0 for count in (counts or {}).values()) >= NUM_COMPARED


def prompt_of(number: int) -> list[int]:
    """Return the prompt of a request; the first few tens differ."""
    return [280 - number % 240, 5, 6, 7] * (1 + number % 3)


async def sampled(engine: VllmEngine, num: int, max_new_tokens: int) -> list[tuple[list[int], Completion]]:
    """Return prompts with their completions."""
    prompts = [prompt_of(number) for number in range(num)]
    made = await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(max_new_tokens=max_new_tokens, seed=seed))
            for seed, prompt in enumerate(prompts)
        )
    )
    return list(zip(prompts, made, strict=True))


def gap(model: Any, prompt: list[int], done: Completion) -> float:
    """Return the mean difference to the log-probabilities of the trainer's own forward pass."""
    return gap_of_both(model, model, prompt, done, 0)


@torch.no_grad()
def gap_of_both(before: Any, after: Any, prompt: list[int], done: Completion, num_old: int) -> float:
    """Return the mean difference to ``num_old`` tokens of one model, continued by another on its keys and values."""
    token_ids, dtype = list(done.token_ids), torch.bfloat16 if after.device.type == "cuda" else torch.float32
    ids = torch.tensor([prompt + token_ids], device=after.device)
    num_read = len(prompt) + num_old - 1 if num_old else 0  # the last token given is read with the new weights
    logits, cache = [], None
    if num_read:
        with rounded_to(before, dtype):
            old = before(ids[:, :num_read], use_cache=True)
        logits, cache = [old.logits], cache_of(old)
    with rounded_to(after, dtype):
        logits.append(after(ids[:, num_read:], **{cache_argument(after): cache}, use_cache=True).logits)
    found = torch.cat(logits, 1)[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    chosen = found[range(len(token_ids)), token_ids].cpu()
    return (chosen - torch.tensor(done.logprobs)).abs().mean().item()


def short_run(is_gpu: bool, ports: Sequence[int]) -> TrainConfig:
    """Return the settings of a run with servers."""
    way, urls = "ipc" if is_gpu else "folder", json.dumps([f"http://127.0.0.1:{port}" for port in ports])
    served = ("engine.kind=vllm", f"engine.urls={urls}", f"engine.weight_sync={way}")
    return apply_overrides(load_recipe("tiny"), [*ranked.SETTINGS, *served])


def with_urls(config: TrainConfig, *urls: str) -> TrainConfig:
    """Return the settings with other servers."""
    return replace(config, engine=replace(config.engine, urls=urls))


def of_runs(config: TrainConfig, folder: Path, is_gpu: bool) -> Iterator[Row]:
    """Train in async mode with one rank, and with two: on a GPU each of these gives one server its weights.

    On a CPU with two that share one server, since the tests of a real server train with one.
    """
    way, all_urls = config.engine.weight_sync, config.engine.urls
    for num_ranks in (1, 2) if is_gpu else (2,):
        run_dir, urls = folder / f"async-{num_ranks}", all_urls[:num_ranks]
        served = ("engine.kind=vllm", f"engine.urls={json.dumps(urls)}", f"engine.weight_sync={way}")
        started = time.perf_counter()
        ranked.train(num_ranks, run_dir, *served, "pipeline.mode=async")
        taken = time.perf_counter() - started
        rows = ranked.rl_rows(run_dir)
        has_trained = all(
            row["trained_tokens"] and row["grad_norm"] and row["engine/num_updated"] == len(urls) for row in rows
        )
        # of the first step: the next is sampled from older weights
        gap = rows[0]["logprob_gap_mean"] if has_trained else float("nan")
        note = f"a server's proof {max(row['engine/probe_gap'] for row in rows):.2g}; {taken:.0f} s"
        counted = f"{num_ranks} rank{'s' * (num_ranks > 1)}, {len(urls)} server{'s' * (len(urls) > 1)}"
        name = f"run with vLLM, {way}, async, {counted}: log-probability gap"
        yield Row(name, gap, BFLOAT16_GAP if is_gpu else FLOAT32_GAP, note)
