"""A run's policy: the model that is trained, the engine that samples from it, and how weights reach that engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed.fsdp import FSDPModule

from agentgym.engine import Engine
from agentgym.trainers.config.rank_limits import Roles, episodes_of_rank
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.copies import copy_whole, move_whole
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import shard, shard_from_first
from agentgym.trainers.models.model import frozen_copy, never_trained
from agentgym.trainers.models.quantized import is_quantized
from agentgym.trainers.models.vision import vision_of
from agentgym.trainers.placement.build import borrowing_engine, build_engine, engine_notes
from agentgym.trainers.placement.channels import EngineChannel, TrainedModel, WeightChannel
from agentgym.trainers.placement.lending import GatherOnDemand
from agentgym.trainers.placement.servers import build_guest
from agentgym.trainers.run.cluster import engine_on
from agentgym.trainers.types import CausalLM, Tokenizer

if TYPE_CHECKING:
    from agentgym.trainers.ray.cluster import Cluster, JoinedCluster


class RunPolicy:
    """The trained model, sharded over the ranks, and on a rank that samples an engine.

    Args:
        loaded: the whole model, on a rank that loads it.
        roles: which ranks sample, and how weights reach their engines.
        role: name of the role that it plays; empty for the run's policy.
    """

    def __init__(  # what a run has made before
        self,
        config: TrainConfig,
        loaded: CausalLM | None,
        tokenizer: Tokenizer,
        run_dir: Path,
        *,
        ranks: Ranks,
        roles: Roles,
        cluster: Cluster | JoinedCluster | None,
        role: str = "",
    ) -> None:
        self._role = role
        self._config, self._tokenizer, self._run_dir = config, tokenizer, run_dir
        self._ranks, self._roles, self._cluster = ranks, roles, cluster
        self.model, self.served = self._trained_and_served(loaded)
        """The trained model, and on a rank whose engine needs it, the model to sample from."""
        self._gather_on_demand = GatherOnDemand(self.model) if roles.lend else None
        if self._gather_on_demand is not None:
            self.served = self._gather_on_demand.empty_model
        self.engine: Engine | None = None
        """The inference engine of a rank that samples, once :meth:`make_engine` has made it; None on others."""
        self._channel: WeightChannel | None = None

    def make_engine(self) -> None:
        """Create the engine of a rank that samples, and the channel of its weights."""
        config, cluster = self._config, self._cluster
        self.engine = self._made_engine()
        make = EngineChannel if cluster is not None and config.cluster.plays else config.engine.traits.make_channel
        self._channel = make(
            self.engine,
            TrainedModel(
                config=config,
                model=self.model,
                served=self.served,
                tokenizer=self._tokenizer,
                run_dir=self._run_dir,
                ranks=self._ranks,
                roles=self._roles,
                start_servers=partial(cluster.start_engines, role=self._role) if cluster else lambda source: False,
            ),
        )

    @property
    def channel(self) -> WeightChannel:
        """The channel by which weights reach the engine, once :meth:`make_engine` has made it."""
        assert self._channel is not None, "make_engine comes first"
        return self._channel

    async def connect(self, say: Callable[[str], None]) -> None:
        """Wait until an engine outside this process is ready. A second call does nothing."""
        if self._ranks.is_main and self.engine is not None:
            for note in engine_notes(self.engine, self._config, self.model, self._tokenizer):
                say(note)
        await self.channel.connect(say)

    async def update(self, version: int) -> None:
        """Send the model's current weights to the engine. All ranks must call this."""
        if self._config.engine.sleep:  # servers that wake take the memory of the gradients, whose step is over
            self.model.zero_grad()
        if self._gather_on_demand is not None:
            self._gather_on_demand.begin()
        elif self.served is not self.model and not self._roles.gather:
            copy_whole(self.model, self.served)
        await self.channel.publish(version)

    def whole_model(self) -> CausalLM | None:
        """Return the unsharded model on the first rank, None on the others. All ranks must call this."""
        if not isinstance(self.model, FSDPModule):
            return self.model
        if self._gather_on_demand is not None:
            self._gather_on_demand.give_all(is_kept=self._ranks.is_main)
        else:
            move_whole(self.model, self.served if self._ranks.is_main else None)
        return self.served if self._ranks.is_main else None

    # ---------------------------------------------------------------------------------------------------- private

    def _trained_and_served(self, loaded: CausalLM | None) -> tuple[CausalLM, CausalLM | None]:
        """Return the model that is trained and, on a rank whose engine needs it, the model to sample from.

        Rollouts need a separate copy if the trained model is sharded, or if its weights change while they run (async
        mode) and the engine has none of its own.
        """
        ranks, precision = self._ranks, self._config.loss.precision
        needs_copy = self._roles.loads(is_main=ranks.is_main) and not self._roles.lend
        if loaded is not None and (ranks.count == 1 or is_quantized(loaded)):
            is_shared = ranks.count == 1 and not self._config.samples_from_copy(on_gpu=loaded.device.type == "cuda")
            served = loaded if is_shared else frozen_copy(loaded) if needs_copy else None
            return shard(loaded, ranks, precision), served
        trained = shard_from_first(loaded, ranks, precision)
        return trained, never_trained(loaded) if loaded is not None and needs_copy else None

    def _made_engine(self) -> Engine | None:
        config, ranks, roles = self._config, self._ranks, self._roles
        num_episodes = episodes_of_rank(config, ranks.count)
        if self._gather_on_demand is not None:
            return borrowing_engine(
                config, self._gather_on_demand.empty_model, self._gather_on_demand.present, num_episodes
            )
        if roles.share_servers and not (ranks.is_main or roles.all_send):
            return build_guest(config, self.model.config, ranks.rank, vision_of(self.model))
        if self._cluster is not None and config.cluster.plays:
            return engine_on(
                self._cluster, ranks, config, self.served, self._tokenizer, self._role, all_ranks_sample=roles.all_play
            )
        is_sender = roles.gather and (ranks.is_main or roles.all_send)
        source = self.model if is_sender else self.served
        return None if source is None else build_engine(config, source, self._run_dir, num_episodes)
