"""The registry of engines: the embedded one, vLLM servers, and those of users.

An engine is registered as a function that creates it::

    @engine("mine")
    def mine(config: TrainConfig, model: CausalLM, run_dir: Path) -> Engine:
        return MyEngine(model)

``engine.kind`` in a configuration names it: ``mine``, ``module:mine`` or ``file.py:mine``. The decorator says what the
trainer must know of it, as in ``@engine("mine", is_shared=True)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentgym.plugins import Component, F, Registry, checked_options, imported


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineComponent(Component):
    """An engine: the function that creates it, and the traits that the trainer needs to know."""

    is_embedded: bool = False
    """True if it samples in the trainer's process, with caches in its memory: plans count them."""
    is_served: bool = False
    """True if servers of their own weights sample, at ``engine.urls`` or on the trainer's GPU."""
    is_shared: bool = False
    """True if several ranks may sample at the same time, each by an engine of its own."""
    runs_on_ray: bool = False
    """True if a Ray cluster can start it (``cluster.address``)."""
    channel: Callable[..., Any] | str = "agentgym.trainers.placement.channels:EngineChannel"
    """Class of its :class:`~agentgym.trainers.placement.channels.WeightChannel`, or its ``module:class``."""

    @property
    def make_channel(self) -> Callable[..., Any]:
        """The class of its channel, imported if necessary."""
        return imported(self.channel)


ENGINES = Registry[EngineComponent](
    "engine", "agentgym.trainers.engines.component", ("config", "model", "run_dir", "num_episodes")
)


def engine(name: str, **metadata: Any) -> Callable[[F], F]:
    """Register an engine: a function that returns an :class:`~agentgym.engine.Engine`.

    It may take ``config`` (the :class:`~agentgym.trainers.config.train.TrainConfig`), ``model`` (the trainer's, whose
    weights the engine reads in ``update_weights``), ``run_dir`` (which may not exist yet), ``num_episodes`` (the most
    that this rank plays at the same time), and the keys of its options (``engine.options``). If it has an
    ``async connect(say)``, a run awaits it before the first ``update_weights``.

    Args:
        name: its name in ``engine.kind``.
        metadata: fields of :class:`EngineComponent`.
    """

    def register(function: F) -> F:
        known = dict(metadata)
        options = checked_options("engine", name, function, known.pop("options", None))
        ENGINES.add(EngineComponent(name=name, family="engine", function=function, options=options, **known))
        return function

    return register


_BUILD, _SERVERS = "agentgym.trainers.placement.build", "agentgym.trainers.placement.servers"
ENGINES.add(
    EngineComponent(
        name="torch",
        family="engine",
        function=f"{_BUILD}:torch_engine",
        is_embedded=True,
        is_shared=True,
        runs_on_ray=True,
    )
)
ENGINES.add(
    EngineComponent(
        name="vllm",
        family="engine",
        function=f"{_SERVERS}:servers",
        is_served=True,
        is_shared=True,
        runs_on_ray=True,
        channel=f"{_SERVERS}:ServersChannel",
    )
)
