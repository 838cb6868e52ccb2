"""The registry of engines: the embedded one, vLLM servers, and those of users.

An engine is registered as a function that creates it::

    @engine("mine")
    def mine(config: TrainConfig, model: CausalLM, run_dir: Path) -> Engine:
        return MyEngine(model)

``engine.kind`` in a configuration names it, as ``mine``, ``module:mine`` or ``file.py:mine``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentgym.plugins import Component, F, Registry, checked_options

ENGINES = Registry[Component](
    "engine", "agentgym.trainers.engines.component", ("config", "model", "run_dir", "num_episodes")
)


def engine(name: str, **facts: Any) -> Callable[[F], F]:
    """Register an engine: a function that returns an :class:`~agentgym.engine.Engine`.

    It may take ``config`` (the :class:`~agentgym.trainers.config.train.TrainConfig`), ``model`` (the trainer's, whose
    weights the engine reads in ``update_weights``), ``run_dir`` (which may not exist yet), ``num_episodes`` (the most
    that this rank plays at the same time), and the keys of its options (``engine.options``).

    Args:
        name: its name in ``engine.kind``.
        facts: fields of :class:`~agentgym.plugins.Component`.
    """

    def register(function: F) -> F:
        known = dict(facts)
        options = checked_options("engine", name, function, known.pop("options", None))
        ENGINES.add(Component(name=name, family="engine", function=function, options=options, **known))
        return function

    return register


for _name, _function in (("torch", "torch_engine"), ("vllm", "servers")):
    ENGINES.add(Component(name=_name, family="engine", function=f"agentgym.trainers.placement.build:{_function}"))
