"""The ways by which a trained model's weights reach the engines that sample from it.

The registration of an engine names its channel (:class:`~agentgym.trainers.engines.component.EngineComponent`). The
engines of a Ray cluster, the embedded one and those of users take weights in their own ``update_weights``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentgym.engine import Engine
from agentgym.errors import EngineError, boundary
from agentgym.trainers.config.rank_limits import Roles
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.types import CausalLM, Tokenizer

Say = Callable[[str], None]


class WeightChannel(Protocol):
    """The way of one model's weights to its engine, over all ranks that train the model."""

    async def connect(self, say: Say) -> None:
        """Wait until the engine can take weights; rank 0 says what users must do for it. A second call does nothing."""
        ...

    async def publish(self, version: int) -> None:
        """Give the engine the model's current weights, as ``version``. All ranks must call this."""
        ...

    async def sleep(self) -> None:
        """Let servers on the trainer's GPU free their memory until the next :meth:`publish`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A trained model on one rank, with what a channel must know of the run."""

    config: TrainConfig
    model: CausalLM
    """The model, or this rank's shard of it."""
    served: CausalLM | None
    """The whole model from which this rank's engine samples; None if it needs none."""
    tokenizer: Tokenizer
    run_dir: Path
    ranks: Ranks
    roles: Roles
    start_servers: Callable[[str], bool]
    """Starts vLLM servers of a model, where Ray does so; returns False where users do."""


class EngineChannel:
    """The channel to an engine that takes the weights in :meth:`~agentgym.engine.Engine.update_weights`.

    Args:
        engine: the engine; None on a rank that does not sample.
    """

    def __init__(self, engine: Engine | None, trained: TrainedModel) -> None:
        self._engine, self._config, self._ranks = engine, trained.config, trained.ranks
        self._call = self._ranks.from_all if trained.roles.all_play else self._ranks.from_main

    async def connect(self, say: Say) -> None:
        connect = getattr(self._engine, "connect", None)
        if connect is not None:
            await connect(say if self._ranks.is_main else on_rank(self._ranks.rank))

    async def publish(self, version: int) -> None:
        await self._call(lambda: self._update(version))

    async def sleep(self) -> None:
        """Do nothing: only servers have memory to free."""

    async def _update(self, version: int) -> None:
        assert self._engine is not None, "this rank does not play"
        with boundary(EngineError, f"engine.kind={self._config.engine.kind}: update_weights"):
            await self._engine.update_weights(version)


def on_rank(rank: int) -> Callable[[str], None]:
    """Return a function that prints what another rank than the first has to say."""
    return lambda line: print(f"rank {rank}: {line}", file=sys.stderr, flush=True)
