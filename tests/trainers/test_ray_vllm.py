"""vLLM servers placed by Ray: how they are started, fed and given up; the server is a stand-in, and so is Ray."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from testkit.fake_vllm import FACTS, VOCAB_SIZE, FakeVllm, evidence_of
from transformers import AutoModelForCausalLM, Qwen3Config

from agentgym import server_tokens
from agentgym.engine import SamplingParams
from agentgym.errors import EngineError
from agentgym.trainers.config.cluster import ClusterConfig, ClusterPlace
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.launch import VllmInstall, command
from agentgym.trainers.engines.vllm.proof import DTYPES
from agentgym.trainers.engines.vllm.weights import probe_ids
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.ray import vllm_serving
from agentgym.trainers.ray.actor_state import ending_with_parent
from agentgym.trainers.ray.serving import EngineSpec
from agentgym.trainers.ray.vllm_servers import serve_options
from agentgym.trainers.ray.vllm_serving import VllmServing
from agentgym.trainers.ray.weights import PackedWeights
from agentgym.trainers.recipes import load_recipe
from agentgym.web_guard import ACCESS_VARIABLE, WebGuard

INSTALL = VllmInstall(python="py", version="0.32.0", is_cpu=False)
SAMPLING = SamplingParams(max_new_tokens=3, seed=5)


def config(**cluster: Any) -> TrainConfig:
    quick = EngineConfig(kind="vllm", server_wait_s=2.0, health_interval_s=0.05, update_timeout_s=5.0)
    return replace(
        apply_overrides(load_recipe("tiny"), []),
        model=ModelConfig(max_context_tokens=64),
        engine=quick,
        cluster=ClusterConfig(address="auto", **cluster),
    )


def spec(**cluster: Any) -> EngineSpec:
    shape = Qwen3Config(hidden_size=FACTS.hidden_size, num_hidden_layers=1, vocab_size=VOCAB_SIZE)
    return EngineSpec(config=config(**cluster), shape=shape, dtype=torch.float32)


def packed(number: int, version: int, gap: float = 0.0) -> PackedWeights:
    """Weights with which the stand-in samples ``number`` first, and what it computes of the probe."""
    evidence = evidence_of(number, probe_ids(version, VOCAB_SIZE), DTYPES, gap)
    return PackedWeights(version=version, tensors=str(number).encode(), evidence=evidence)


class Process:
    """What stands for the server's process."""

    is_running = True
    pid = 4711

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, install: VllmInstall, options: Any, log_path: Path, behind: list[str]) -> Process:
        self.model = Path(options.model)
        assert (self.model / "config.json").is_file(), "a server starts from a model's folder"
        assert (self.model / "model.safetensors").is_file()
        assert options.token and server_tokens.token_for(f"http://{options.host}:{options.port}") == options.token
        return self

    def wait_until_ready(self, timeout_s: float) -> None:
        assert self.is_running


def test_a_server_has_the_gpus_of_its_actor_and_the_flags_of_the_run() -> None:
    run = config(gpus_per_engine=2, vllm_flags=("--max-num-seqs", "8"))
    options = serve_options("folder", "http://127.0.0.1:8001", run, "secret")
    words, _ = command(INSTALL, options, "agentgym-1")
    line = " ".join(words)
    for part in ("--model folder", "--port 8001", "--tensor-parallel-size 2", "--max-num-seqs 8", "--max-model-len 64"):
        assert part in line
    assert "tensor-parallel" not in " ".join(
        command(INSTALL, serve_options("f", "http://127.0.0.1:1", config(), ""), "n")[0]
    )


def test_a_server_on_the_network_of_a_cluster_needs_the_token_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of others reach the address; ranks on other machines know the token from the first rank."""
    monkeypatch.setattr(server_tokens, "_remembered", {})
    monkeypatch.setenv(server_tokens.TOKEN_VARIABLE, "another-servers")
    url = "http://10.1.2.3:8001"
    options = serve_options("folder", url, config(), "secret")
    assert "secret" not in repr(options)
    _, environment = command(INSTALL, options, "agentgym-1")
    monkeypatch.setenv(ACCESS_VARIABLE, environment[ACCESS_VARIABLE])

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def statuses() -> list[int]:
        found = []
        transport = httpx.ASGITransport(app=WebGuard(answer))
        async with httpx.AsyncClient(transport=transport, auth=server_tokens.add_token) as http:
            for token in ("", "secret"):
                server_tokens.remember_token(url, token)
                found.append((await http.post(f"{url}/v1/completions", json={})).status_code)
        return found

    assert asyncio.run(statuses()) == [401, 200]
    tokens = {"env_token": "secret", "engine_token": "secret"}
    place = ClusterPlace(address="", auth_mode="", names="", env_url=url, engine_urls={"policy": (url,)}, **tokens)
    assert "secret" not in repr(place)


def test_a_server_is_told_the_class_of_a_new_model() -> None:
    shape = Qwen3Config(hidden_size=32, num_hidden_layers=1, vocab_size=VOCAB_SIZE, head_dim=8, intermediate_size=32)
    model: Any = AutoModelForCausalLM.from_config(shape)  # type: ignore[no-untyped-call]
    assert not model.config.architectures, "else this shows nothing"
    assert EngineSpec.of(config(), model).shape.architectures == ["Qwen3ForCausalLM"]


class Left:
    """What stands for :class:`~agentgym.processes.remains.Remains`, and kills nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.groups = folder, list[int]()

    def add_group(self, leader: int) -> None:
        self.groups.append(leader)


def test_a_server_beside_its_actor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = Left(tmp_path)

    async def scenario() -> None:
        server = await FakeVllm().start()
        process = Process(server.url)
        monkeypatch.setattr(vllm_serving, "VllmProcess", process)
        monkeypatch.setattr(vllm_serving, "find_vllm", lambda: INSTALL)
        monkeypatch.setattr(vllm_serving, "Remains", lambda prefix: left)
        actor = VllmServing(spec())
        assert (await actor.ping()).serial == 0
        for number, version in ((7, 0), (8, 1)):
            await actor.load(packed(number, version), version + 1)
            completion = await actor.generate((1, 2), SAMPLING, f"s{version}", True)
            assert (completion.token_ids[0], set(completion.policy_versions)) == (number, {version})
            await actor.release(f"s{version}")
        assert (await actor.ping()).serial == 2

        with pytest.raises(EngineError, match="computes with something else"):
            await actor.load(packed(9, 2, gap=1.0), 3)
        assert (await actor.ping()).serial == 0, "it serves nothing rather than something else"

        exits: list[int] = []
        monkeypatch.setattr(os, "_exit", exits.append)
        process.is_running = False
        await actor.ping()
        assert exits == [1], "an actor ends with its server, and Ray starts both again"
        assert left.groups == [process.pid]
        assert actor._engine is not None
        await actor._engine.close()
        await server.kill()

    asyncio.run(scenario())


def test_what_an_actor_leaves_ends_when_it_is_killed() -> None:
    """Its folder, and the workers of a server that is already dead."""
    code = (
        "import os, subprocess; from agentgym.processes.remains import Remains\n"
        "remains = Remains('agentgym-engine-'); (remains.folder / 'weights').write_text('w')\n"
        "server = subprocess.Popen(['sh', '-c', 'sleep 600 >/dev/null 2>&1 & echo $!'], stdout=subprocess.PIPE,\n"
        "                          start_new_session=True)\n"
        "worker = int(server.stdout.readline()); server.wait(); remains.add_group(server.pid)\n"
        "print(remains.folder, worker, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    folder, worker = done.stdout.split()
    assert Path(folder).name.startswith("agentgym-engine-"), done.stderr
    for _ in range(200):
        if not Path(folder).exists() and not is_alive(int(worker)):
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} or process {worker} is left")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
def test_a_server_is_killed_with_its_actor() -> None:
    behind = ending_with_parent()
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([*sys.argv[1:], 'sleep', '600'], start_new_session=True)\n"
        "import time\n"
        "while b'sleep' not in open(f'/proc/{child.pid}/cmdline', 'rb').read()[:5]: time.sleep(0.01)\n"
        "print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code, *behind], capture_output=True, text=True, check=False)
    for _ in range(200):
        if not is_alive(int(done.stdout)):
            return
        time.sleep(0.05)
    raise AssertionError("it runs on")
