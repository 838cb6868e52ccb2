"""Settings of the engine that samples the rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from agentgym.errors import ConfigError
from agentgym.plugins import ByKind
from agentgym.settings import Count, Positive, Settings, check_ranges
from agentgym.trainers.engines.component import ENGINES, EngineComponent

_OF_SERVERS = ("urls", "weight_sync", "in_flight", "sleep", "weight_dir")
_OF_THE_EMBEDDED = ("dtype", "decode", "compile", "forward", "batch_invariant")
"""Settings without effect on engines of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Settings):
    """Settings of the embedded engine, or of vLLM servers that ``agentgym serve-model`` started.

    Example:
        >>> EngineConfig(kind="vllm", urls=("http://127.0.0.1:8000",)).weight_sync
        'folder'
    """

    kind: str = "torch"
    """``torch``: the embedded engine; ``vllm``: vLLM servers; ``module:name`` or ``file.py:name``: a user's engine."""
    options: Annotated[Any, ByKind(ENGINES)] | None = None
    """Settings of a user's engine; None: its defaults."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the embedded engine; ``auto``: bfloat16 on a GPU, float32 on a CPU. The trainer uses
    ``loss.precision``; ``loss.corrections`` correct for the effect of rounding on probabilities."""
    decode: Literal["auto", "ragged", "fixed"] = "auto"
    """Decoding of the embedded engine. ``ragged``: steps with exactly the running rows. ``fixed``: steps of a few fixed
    shapes, which are CUDA graphs on a GPU. ``auto``: fixed on a GPU, ragged on a CPU."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the layers of the embedded engine around attention. ``auto``: on a GPU, if ``decode`` is fixed. A machine
    that cannot compile is told so, and samples without."""
    forward: Literal["auto", "own", "transformers"] = "auto"
    """Forward pass of the embedded engine. ``own``: agentgym's, for Llama, Qwen2 and Qwen3. ``transformers``: the
    model's, for any architecture. ``auto``: agentgym's if possible."""
    batch_invariant: bool = False
    """The embedded engine computes every row separately, which is slower. A completion is then equal to the last bit,
    whatever else is being sampled, and so are runs whose episodes begin in another order (on one kind of device)."""
    urls: tuple[str, ...] = ()
    """Addresses of the servers, as in ``http://127.0.0.1:8000``."""
    weight_sync: Literal["folder", "lora", "nccl", "ipc"] = "folder"
    """Transfer of weights to servers. ``folder``: all weights, with merged adapters, through a folder. ``lora``: only
    the adapters, which are swapped. ``ipc``: all weights, to servers on the trainer's GPU. ``nccl``: all weights, to
    servers on other GPUs."""
    in_flight: Literal["auto", "keep", "finish"] = "auto"
    """Handling of running requests at a weight update. ``keep``: pause, load the weights, continue; the tokens of a
    completion then have several versions. ``finish``: complete them before. ``auto``: ``keep``, but ``finish`` with
    ``weight_sync=lora``, where a request is bound to its adapters. Servers that cannot keep requests finish them."""
    sleep: bool = False
    """Servers on the trainer's GPU free their memory while it trains (``agentgym serve-model --sleep``); only in sync
    mode, because in the other modes they always sample."""
    weight_dir: str = ""
    """Folder in which the trainer writes weights and the servers read them, by the same path; empty for the run's."""
    start_timeout_s: Positive = 300.0
    """Seconds to wait for the first server at the start."""
    request_timeout_s: Positive = 120.0
    """Seconds that one completion may take on one server."""
    update_timeout_s: Positive = 300.0
    """Seconds within which new weights must reach the servers."""
    server_wait_s: Positive = 60.0
    """Seconds that a completion waits while no server is ready, before its episode fails. While servers take new
    weights it waits for ``update_timeout_s`` more."""
    health_interval_s: Positive = 2.0
    health_timeout_s: Positive = 10.0
    max_probe_gap: Positive = 0.5
    """Largest mean difference between a server's and the trainer's log-probabilities, on tokens that the server scores
    before it serves. It checks that the server computes correctly; a checksum proves that it has the trainer's weights.
    In float32 they differ by 1e-5, in bfloat16 by up to 0.1, with other weights by 1 or more."""
    max_attempts: Count = 3
    """Number of servers on which a completion is tried before its episode fails."""

    def has_own_weights(self, *, on_gpu: bool) -> bool:
        """Return True if the engine samples from weights of its own, which no training step changes.

        The embedded engine has them if it computes in another dtype than the trainer, vLLM in another process.

        Example:
            >>> EngineConfig().has_own_weights(on_gpu=True), EngineConfig().has_own_weights(on_gpu=False)
            (True, False)
        """
        if self.traits.is_embedded:
            return self.dtype == "bfloat16" or (self.dtype == "auto" and on_gpu)
        return self.traits.is_served

    @property
    def traits(self) -> EngineComponent:
        """The registered engine, which says how it works."""
        return ENGINES[self.kind]

    def __post_init__(self) -> None:
        component = ENGINES[self.kind]
        if self.options is not None and ENGINES[self.options.kind].name != component.name:
            raise ConfigError(f"engine {self.kind!r} comes with options of {self.options.kind!r}")
        if component.is_served:
            self._check_urls()
        else:
            self._refuse(_OF_SERVERS, "of vLLM servers; set engine.kind=vllm too")
        if not component.is_embedded:
            self._refuse(_OF_THE_EMBEDDED, "of the embedded engine; set engine.kind=torch")
        if self.in_flight == "keep" and self.weight_sync == "lora":
            raise ConfigError(
                "engine.in_flight=keep cannot go with engine.weight_sync=lora: a request is bound to its adapters; set "
                "engine.in_flight=finish"
            )
        check_ranges(self, "engine.")

    @property
    def keeps_requests(self) -> bool:
        """True if servers should keep running requests during a weight update."""
        return self.in_flight == "keep" or (self.in_flight == "auto" and self.weight_sync != "lora")

    @property
    def own_options(self) -> object:
        """Settings of a user's engine, or its defaults if none are given; None for agentgym's own engines."""
        made = ENGINES[self.kind].options
        return self.options if self.options is not None or made is None else made()

    def _refuse(self, names: Sequence[str], whose: str) -> None:
        """Refuse settings that would have no effect."""
        defaults = {one.name: one.default for one in fields(self)}
        chosen = [f"engine.{name}" for name in names if getattr(self, name) != defaults[name]]
        if chosen:
            what = "is a setting" if len(chosen) == 1 else "are settings"
            raise ConfigError(f"{', '.join(chosen)} {what} {whose}")

    def _check_urls(self) -> None:
        if len({url.rstrip("/") for url in self.urls}) != len(self.urls):
            raise ConfigError(f"engine.urls names a server twice: {', '.join(self.urls)}")
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
                raise ConfigError(f"engine.urls: expected http://HOST:PORT, got {url!r}")
