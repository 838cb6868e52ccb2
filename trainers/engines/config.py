"""Settings of the engine that samples the rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from agentgym.errors import ConfigError
from agentgym.plugins import ByKind
from agentgym.settings import Count, Positive, check_ranges
from agentgym.trainers.engines.component import ENGINES

TRANSFERS = ("nccl", "ipc")
"""vLLM's own ways to move weights from GPU to GPU, see :mod:`agentgym.trainers.engines.vllm.transfer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The embedded engine, or vLLM servers that ``agentgym serve-model`` started.

    Example:
        >>> EngineConfig(kind="vllm", urls=("http://127.0.0.1:8000",)).weight_sync
        'folder'
    """

    kind: str = "torch"
    """``torch``: the embedded engine; ``vllm``: servers; or a registered engine, ``module:name``, ``file.py:name``."""
    options: Annotated[Any, ByKind(ENGINES)] | None = None
    """Settings of a user's engine; None takes its defaults."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What the embedded engine computes in; ``auto``: bfloat16 on a GPU, float32 on a CPU. The trainer computes in the
    model's own; where the two differ, ``loss.corrections`` account for what rounding does to the probabilities."""
    decode: Literal["auto", "ragged", "fixed"] = "auto"
    """How the embedded engine decodes: in steps that hold the running rows and no more, or in steps of a few fixed
    shapes, which on a GPU are CUDA graphs; ``auto``: fixed on a GPU, ragged on a CPU."""
    forward: Literal["auto", "own", "transformers"] = "auto"
    """What the embedded engine computes logits with: ``own``, its forward of Llama, Qwen2 and Qwen3; ``transformers``,
    the model's own, for any architecture; ``auto``: the engine's where it can."""
    batch_invariant: bool = False
    """The embedded engine forwards every row by itself, which is slower: a completion is then the same to the last bit
    whatever else was being sampled, and so are runs whose episodes begin in another order (on one kind of device)."""
    urls: tuple[str, ...] = ()
    """The servers, as in ``http://127.0.0.1:8000``."""
    weight_sync: Literal["folder", "lora", "nccl", "ipc"] = "folder"
    """``folder``: all weights, adapters merged, through a folder; ``lora``: only the adapters, which are swapped;
    ``ipc``: all weights to servers on the trainer's GPU; ``nccl``: to servers on other GPUs."""
    in_flight: Literal["auto", "keep", "finish"] = "auto"
    """What a server does with its requests when new weights come. ``keep``: pause, take the weights, go on; the tokens
    of a completion then have several versions. ``finish``: end them first. ``auto``: ``keep``, but for
    ``weight_sync=lora``, where a request is bound to its adapters. A server that cannot keep them finishes them."""
    sleep: bool = False
    """Servers on the trainer's own GPU give up their memory while it trains (``agentgym serve-model --sleep``); in sync
    mode alone, since in the others they always play."""
    weight_dir: str = ""
    """Where the trainer writes weights and the servers read them, under one path; empty: in the run's folder."""
    start_timeout_s: Positive = 300.0
    """How long to wait, at the start, for the first server."""
    request_timeout_s: Positive = 120.0
    """Longest time one completion may take on one server."""
    update_timeout_s: Positive = 300.0
    """Longest time new weights may take, from the first server to the last."""
    server_wait_s: Positive = 60.0
    """How long a completion waits while no server is fit to serve, before its episode is given up."""
    health_interval_s: Positive = 2.0
    health_timeout_s: Positive = 10.0
    max_probe_gap: Positive = 0.5
    """How far a server's log-probabilities may be from the trainer's, on average over the tokens it must score before
    it serves: a check that it computes at all. That it has the trainer's weights is proven by their bits. In float32
    they differ by 1e-5, in bfloat16 by up to 0.1; with other weights, by 1 or more."""
    max_attempts: Count = 3
    """Servers that a completion is tried on before its episode is given up."""

    def __post_init__(self) -> None:
        component = ENGINES[self.kind]
        if self.options is not None and ENGINES[self.options.kind].name != component.name:
            raise ConfigError(f"engine {self.kind!r} comes with options of {self.options.kind!r}")
        if self.kind == "vllm":
            self._check_urls()
        elif self.urls or self.sleep:
            raise ConfigError("engine.urls and engine.sleep are for vLLM servers; set engine.kind=vllm too")
        if self.in_flight == "keep" and self.weight_sync == "lora":
            raise ConfigError(
                "engine.in_flight=keep cannot go with engine.weight_sync=lora: a request is bound to its adapters; set "
                "engine.in_flight=finish"
            )
        if self.kind != "torch" and self.forward != "auto":
            raise ConfigError("engine.forward is the embedded engine's; set engine.kind=torch")
        if self.kind != "torch" and self.batch_invariant:
            raise ConfigError("engine.batch_invariant is the embedded engine's; set engine.kind=torch")
        check_ranges(self, "engine.")

    @property
    def keeps_requests(self) -> bool:
        """True if servers are to keep their requests while they take new weights."""
        return self.in_flight == "keep" or (self.in_flight == "auto" and self.weight_sync != "lora")

    @property
    def own_options(self) -> object:
        """Settings of a user's engine, its defaults if none are given; None for agentgym's own."""
        made = ENGINES[self.kind].options
        return self.options if self.options is not None or made is None else made()

    def _check_urls(self) -> None:
        if len({url.rstrip("/") for url in self.urls}) != len(self.urls):
            raise ConfigError(f"engine.urls names a server twice: {', '.join(self.urls)}")
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
                raise ConfigError(f"engine.urls: expected http://HOST:PORT, got {url!r}")
