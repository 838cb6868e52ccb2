"""The engine over real vLLM servers, on a CPU in float32; ``make test-vllm`` runs these in a few minutes."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import torch
from testkit import TESTKIT
from testkit.ray_runs import warm_workers

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.ports import free_port
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.pipeline import PipelineConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.client import Held
from agentgym.trainers.engines.vllm.in_flight import Server, ServerState, tokens_given
from agentgym.trainers.engines.vllm.launch import ServeOptions, VllmInstall, VllmProcess, find_vllm
from agentgym.trainers.engines.vllm.server import ReadOnlyServersEngine, VllmEngine
from agentgym.trainers.engines.vllm.weights import Handover
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.kv_cache import cache_argument, cache_of
from agentgym.trainers.models.model import save_model
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.placement.servers import build_guest
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run
from agentgym.trainers.train import train
from agentgym.types import Completion, FinishReason, Status

PYTHON = os.environ.get("AGENTGYM_VLLM_PYTHON", "")
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not PYTHON, reason="needs vLLM's environment: make test-vllm")]

T = TypeVar("T")
ENV_FILE = TESTKIT / "counting_env.py"
MAX_GAP = 1e-4
START_TIMEOUT_S = 600.0
CONTEXT = 160
NUM_PLAYERS, LENGTH = 32, 140
NUM_STEPS = 28
"""Success is 0.1 at the start and 0.8 by then; after 40 steps it would be 0.9."""
LORA = LoraSettings(rank=4)
CACHE_GIB = 1 / 32
"""80,000 tokens of this model. vLLM makes an object for each block of 16 and visits all of them at each update."""
PATIENT: dict[str, Any] = {"request_timeout_s": 240.0, "update_timeout_s": 240.0, "health_timeout_s": 60.0}
"""The machine may be busy with other things; what is tested is what happens, not when."""


def config(*urls: str, **engine: Any) -> TrainConfig:
    """A model of 20,000 parameters that learns to count in under a minute."""
    return replace(
        apply_overrides(load_recipe("tiny"), [f"env.id={ENV_FILE}:Counting-v0"]),
        model=ModelConfig(hidden_size=32, num_layers=1, head_dim=32, vocab_size=320, max_context_tokens=CONTEXT),
        sft=SftConfig(num_demos=320, num_epochs=2, batch_size=8, noise=0.25),
        num_steps=NUM_STEPS,
        groups_per_step=4,
        group=GroupConfig(group_size=8, num_envs=32),
        credit=CreditConfig(estimator="gigpo"),
        optimizer=OptimizerConfig(lr=2e-3),
        eval=EvalConfig(num_episodes=100),
        checkpoint_every=NUM_STEPS,
        engine=EngineConfig(kind="vllm", urls=urls, **{**PATIENT, **engine}),
    )


@dataclass
class Servers:
    """Two servers of one model; the second one swaps adapters."""

    install: VllmInstall
    folder: Path
    processes: list[VllmProcess]

    @property
    def urls(self) -> tuple[str, str]:
        return self.processes[0].url, self.processes[1].url


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("vllm")
    run = Run(config("http://127.0.0.1:1"), folder)
    save_model(run.model, run.tokenizer, folder / "model")
    install = find_vllm(PYTHON)
    processes = [
        VllmProcess(install, options(folder, free_port(), lora_rank), folder / f"server-{lora_rank}.log")
        for lora_rank in (0, LORA.rank)
    ]
    try:
        for process in processes:
            process.wait_until_ready(START_TIMEOUT_S)
        yield Servers(install, folder, processes)
    finally:
        for process in processes:
            process.stop()


def options(folder: Path, port: int, lora_rank: int = 0) -> ServeOptions:
    return ServeOptions(model=str(folder / "model"), port=port, lora_rank=lora_rank, num_threads=1, cache_gib=CACHE_GIB)


def test_pages_of_other_sites_are_refused(servers: Servers) -> None:
    url = servers.urls[0]
    foreign: tuple[dict[str, str], ...] = ({"Host": "evil.example"}, {"Origin": "http://evil.example"})
    for headers in foreign:
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 403
    plain = {"Content-Type": "text/plain"}
    assert httpx.post(f"{url}/collective_rpc", content='{"method": "held"}', headers=plain).status_code == 415
    assert httpx.get(f"{url}/v1/models").status_code == 200


def run_in(limit_s: float, coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, limit_s))


@torch.no_grad()
def shake(model: Any, seed: int) -> None:
    """Change every trained weight, as far as no server could overlook."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def gap(model: Any, prompt: list[int], completion: Completion, temperature: float) -> float:
    """The largest difference between the server's and a plain forward's log-probabilities."""
    token_ids = list(completion.token_ids)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + token_ids])).logits[0, len(prompt) - 1 : -1]
    expected = (logits / (temperature or 1.0)).log_softmax(-1)[range(len(token_ids)), token_ids]
    return float((expected - torch.tensor(completion.logprobs)).abs().max())


async def largest_gap(engine: VllmEngine, model: Any, version: int) -> float:
    """Over several prompts, temperatures and turns on all of the engine's servers; versions are checked, too."""
    gaps = [engine.server_stats.probe_gap]
    for temperature in (1.0, 0.7, 0.0):

        async def play(number: int, temperature: float = temperature) -> None:
            prompt = [280 - number, 5, 6, 7] * (1 + number % 5)
            for turn in range(2):
                sampling = SamplingParams(max_new_tokens=12, temperature=temperature, seed=100 * number + turn)
                completion = await engine.generate(prompt, sampling, session_id=f"{number}")
                assert completion.finish_reason is FinishReason.LENGTH
                assert set(completion.policy_versions) == {version}
                gaps.append(gap(model, prompt, completion, temperature))
                prompt += [*completion.token_ids, 9, 8]
            await engine.release(f"{number}")

        await asyncio.gather(*(play(number) for number in range(12)))
    prompt, continuation = [4, 5, 6], [7, 8, 9, 10]
    scored = await engine.score(prompt, continuation)
    as_completion = Completion(
        token_ids=tuple(continuation), logprobs=scored, policy_versions=(0,) * 4, finish_reason=FinishReason.LENGTH
    )
    return max(*gaps, gap(model, prompt, as_completion, 1.0))


def test_logprobs_are_the_trainers_after_every_update(servers: Servers, tmp_path: Path) -> None:
    run = Run(config(*servers.urls), tmp_path)
    engine = run.engine
    assert isinstance(engine, VllmEngine)

    async def scenario() -> None:
        await run.connect_engine(print)
        for version in range(3):
            shake(run.model, version)
            await engine.update_weights(version)
            assert [server.state for server in engine._pool.servers] == [ServerState.READY, ServerState.READY]
            held = [await server.client.held(60.0) for server in engine._pool.servers]
            published = engine._pool.servers[0].published
            assert published and held == [Held(version=version, checksum=published.checksum)] * 2
            assert await largest_gap(engine, run.model, version) < MAX_GAP
        stop = SamplingParams(max_new_tokens=100, seed=1, stop_token_ids=tuple(range(0, 284, 3)))
        completion = await engine.generate([5, 6], stop)
        assert (completion.finish_reason, completion.token_ids[-1] % 3) == (FinishReason.STOP, 0)
        again = await engine.generate([5, 6], stop)
        assert again.token_ids == completion.token_ids
        assert engine.server_stats.num_left_out == 0
        await engine.close()

    run_in(900, scenario())


async def num_sampling(server: Server) -> int:
    """Return the number of a process's requests to a server that have tokens."""
    given = await tokens_given(server.client, 60.0) or {}
    return sum(given.get(flight.name, 0) > 0 for flight in server.flights)


async def play(
    engine: VllmEngine | ReadOnlyServersEngine, number: int, updated: asyncio.Event
) -> tuple[list[int], Completion]:
    """Send requests one after the other, so that one is in flight during the update; return the last one."""
    prompt, seed = [280 - number, 5, 6, 7] * (1 + number % 3), number
    while True:
        completion = await engine.generate(prompt, SamplingParams(max_new_tokens=LENGTH, seed=seed))
        if updated.is_set():
            return prompt, completion
        seed += NUM_PLAYERS


def test_requests_in_flight_are_kept_and_their_tokens_have_the_versions_they_were_sampled_with(
    servers: Servers, tmp_path: Path
) -> None:
    """Later tokens read keys and values of the older weights, as the server did; the log-probabilities show it.

    Half of the requests are those of a guest, as on another rank.
    """
    run = Run(config(servers.urls[0]), tmp_path)
    engine = run.engine
    assert isinstance(engine, VllmEngine)
    engine.share()
    guest = build_guest(run.config, run.model.config, rank=1)

    async def update(version: int) -> None:
        shake(run.model, version)
        await guest.hold()
        published = engine.publish(version)
        given = await engine.give(published, is_patient=True)
        guest.adopt(Handover(published=published, servers=given))

    async def played_over(version: int) -> list[tuple[list[int], Completion]]:
        """Update while requests have tokens; return the last request of each player."""
        updated = asyncio.Event()
        engines = [guest if number % 2 else engine for number in range(NUM_PLAYERS)]
        playing = [asyncio.create_task(play(of, number, updated)) for number, of in enumerate(engines)]
        both = [of._pool.servers[0] for of in (engine, guest)]
        while min([await num_sampling(one) for one in both]) < 4:
            await asyncio.sleep(0.001)
        await update(version)
        updated.set()
        return await asyncio.gather(*playing)

    async def scenario() -> int:
        await run.connect_engine(print)
        await update(1)
        spanning = 0
        for version in range(2, 22):
            before = copy.deepcopy(run.model)
            for prompt, completion in await played_over(version):
                assert completion.policy_versions == tuple(sorted(completion.policy_versions))
                num_old = completion.policy_versions.count(version - 1)
                spanning += 0 < num_old < LENGTH
                assert gap_of_both(before, run.model, prompt, completion, num_old) < MAX_GAP
            all_stats = engine.server_stats, guest.server_stats
            assert all((stats.num_left_out, stats.num_moved) == (0, 0) for stats in all_stats)
            # where other programs hold up this one, all requests may end before the update
            if spanning and all(stats.num_kept for stats in all_stats):
                break
        assert all(stats.num_kept for stats in all_stats)
        await guest.close()
        await engine.close()
        return spanning

    assert run_in(900, scenario()) > 0


@torch.no_grad()
def gap_of_both(before: Any, after: Any, prompt: list[int], completion: Completion, num_old: int) -> float:
    """The largest difference to log-probabilities of ``num_old`` tokens of one model, continued by another."""
    token_ids = list(completion.token_ids)
    ids = torch.tensor([prompt + token_ids])
    if num_old == 0:
        return gap(after, prompt, completion, 1.0)
    num_read = len(prompt) + num_old - 1  # the last token given is read with the new weights
    old = before(ids[:, :num_read], use_cache=True)
    new = after(ids[:, num_read:], **{cache_argument(after): cache_of(old)}, use_cache=True)
    logits = torch.cat([old.logits, new.logits], 1)[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)[range(len(token_ids)), token_ids]
    return float((expected - torch.tensor(completion.logprobs)).abs().max())


def test_adapters_are_swapped(servers: Servers, tmp_path: Path) -> None:
    base = config(servers.urls[1])
    engine = replace(base.engine, weight_sync="lora")
    run = Run(replace(base, engine=engine, model=replace(base.model, lora=LORA)), tmp_path)
    plain = Run(config(servers.urls[1]), tmp_path / "plain")

    async def scenario() -> None:
        assert isinstance(run.engine, VllmEngine) and isinstance(plain.engine, VllmEngine)
        await plain.engine.update_weights(0)  # what the servers hold from other tests is not what is under the adapters
        for version in (1, 2):
            shake(run.model, version)
            await run.engine.update_weights(version)
            assert await largest_gap(run.engine, run.model, version) < MAX_GAP
        await run.engine.close()
        await plain.engine.close()

    run_in(900, scenario())


def test_gigpo_learns_with_rollouts_from_vllm(servers: Servers, tmp_path: Path) -> None:
    asked_often = config(servers.urls[0], health_interval_s=0.2)
    result = train(replace(asked_often, pipeline=PipelineConfig(max_in_flight="auto")), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == NUM_STEPS
    assert max(row["logprob_gap_max"] for row in rows) < MAX_GAP
    assert max(row["engine/probe_gap"] for row in rows) < MAX_GAP
    assert rows[-1]["engine/num_left_out"] == 0
    shares = [row["prefix_hit_share"] for row in rows if "prefix_hit_share" in row]
    assert shares and all(0 <= share <= 1 for share in shares)
    assert max(shares) > 0.05, "a turn's prompt is the one before and some tokens more; blocks of 128 are kept whole"
    assert result.success_before is not None and result.success_after is not None
    assert result.success_after > result.success_before + 0.3


def test_kill_9_in_the_middle_of_a_rollout(servers: Servers, tmp_path: Path) -> None:
    """The episodes move, none is lost; the server comes back only with the weights of by then."""
    run = Run(config(*servers.urls, health_interval_s=0.5), tmp_path)
    engine = run.engine
    assert isinstance(engine, VllmEngine)
    victim = servers.processes[0]

    async def rollout() -> set[Status]:
        tasks = [(n, run.envs[0].train_tasks[n]) for n in range(6)]
        groups = await run_groups(tasks, run.envs[0].pool, run.make_agent(run.envs[0]), run.config.group, seed=0)
        episodes = [episode for group in groups for episode in group.trajectories]
        assert all((episode.reward is None) == (not episode.status.is_evidence) for episode in episodes)
        return {episode.status for episode in episodes}

    async def kill_when_busy() -> None:
        async with asyncio.timeout(120):
            while len(engine._pool.servers[0].flights) < 4:
                await asyncio.sleep(0.001)
        os.killpg(victim.pid, signal.SIGKILL)

    async def scenario() -> None:
        await run.connect_engine(print)
        shake(run.model, 1)
        await engine.update_weights(1)
        statuses, _ = await asyncio.gather(rollout(), kill_when_busy())
        assert statuses <= {Status.COMPLETED, Status.TRUNCATED_TURNS, Status.TRUNCATED_TOKENS}
        assert (engine.server_stats.num_left_out, engine.server_stats.num_moved >= 4) == (1, True)
        shake(run.model, 2)
        await engine.update_weights(2)
        assert [server.state for server in engine._pool.servers] == [ServerState.OUT, ServerState.READY]

        with serving(servers, victim.options.port, tmp_path) as command:
            while engine.server_stats.num_readmitted == 0:
                assert command.poll() is None, (tmp_path / "server.log").read_text()[-2000:]
                await asyncio.sleep(0.1)
            assert (await engine._pool.servers[0].client.held(60.0)).version == 2
            assert await largest_gap(engine, run.model, 2) < MAX_GAP
            assert await rollout() <= {Status.COMPLETED, Status.TRUNCATED_TURNS, Status.TRUNCATED_TOKENS}
            await engine.close()

    run_in(1200, scenario())


class serving:
    """``agentgym serve-model`` around a block, ended as a service is."""

    def __init__(self, servers: Servers, port: int, folder: Path) -> None:
        words = ["serve-model", str(servers.folder / "model"), "--port", str(port), "--python", PYTHON]
        words += ["--num-threads", "1", "--log", str(folder / "server.log")]
        self._process = subprocess.Popen([sys.executable, "-m", "agentgym", *words], stderr=subprocess.DEVNULL)
        self._port = port

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0
        time.sleep(0.1)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", self._port)) != 0


@pytest.mark.parametrize(("num_env_workers", "lost"), [(1, "engine"), (0, "vllm_servers")])
def test_a_ray_cluster_starts_a_server_and_brings_it_the_weights_of_each_step(
    num_env_workers: int, lost: str, tmp_path: Path, warm_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes are played by an env worker and an actor beside the server, or by the trainer itself."""
    pytest.importorskip("ray")
    warm_workers(monkeypatch, warm_python)
    patience: dict[str, Any] = {f"{name}_s": START_TIMEOUT_S for name in ("start_timeout", "wait", "health_timeout")}
    cluster = ClusterConfig(
        address="local",
        num_env_workers=num_env_workers,
        object_store_mb=100,
        vllm_flags=("--num-gpu-blocks-override", "64"),
        **patience,
    )
    settings = replace(
        config("http://127.0.0.1:1"),
        num_steps=3,
        eval=EvalConfig(num_episodes=8),
        engine=EngineConfig(kind="vllm", start_timeout_s=START_TIMEOUT_S, **PATIENT),
        cluster=cluster,
    )
    result = train(settings, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == result.steps == 3 and any(row["grad_norm"] for row in rows)
    assert max(row["logprob_gap_max"] for row in rows) < MAX_GAP, "each step is sampled from the weights of then"
    assert rows[-1][f"{lost}/num_lost"] == 0


def test_the_gpu_checks_with_servers_pass_on_a_cpu(tmp_path: Path, warm_run: Callable[..., str]) -> None:
    out = tmp_path / "check.json"
    warm_run("benchmarks/gpu/check.py", "--device", "cpu", "--only", "servers", "real_model", "--out", out)
    checks = json.loads(out.read_text())["checks"]
    assert [len(check["rows"]) for check in checks.values()] == [6, 2]
    assert all(row["passed"] and not row["is_skipped"] for check in checks.values() for row in check["rows"])


def test_the_benchmark_of_weights_measures_both_ways(tmp_path: Path, warm_run: Callable[..., str]) -> None:
    out = tmp_path / "w.json"
    warm_run("benchmarks/weights/bench.py", "--python", PYTHON, "--tiny", "--updates", "1", "--out", out)
    folder, lora = json.loads(out.read_text())["rows"]
    assert folder["bytes"] > lora["bytes"] > 0 and folder["num_trained"] == folder["num_parameters"]
    assert "| `lora` |" in (tmp_path / "w.md").read_text()
