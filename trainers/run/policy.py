"""A run's policy: the model that is trained, the engine that samples from it, and how weights reach that engine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed.fsdp import FSDPModule

from agentgym.engine import Engine
from agentgym.errors import EngineError, boundary
from agentgym.trainers.config.rank_limits import Roles, episodes_of_rank
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.copies import copy_whole, move_whole
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import shard, shard_from_first
from agentgym.trainers.engines.facts import facts_of
from agentgym.trainers.engines.vllm.gathered import GatheredWeights
from agentgym.trainers.engines.vllm.proof import DTYPES
from agentgym.trainers.engines.vllm.server import ServersEngine, VllmEngine
from agentgym.trainers.engines.vllm.weights import Handover, Published, probe_ids
from agentgym.trainers.models.model import frozen_copy, never_trained
from agentgym.trainers.models.quantized import is_quantized
from agentgym.trainers.placement.build import (
    borrowing_engine,
    build_engine,
    build_guest,
    connect_engine,
    engine_notes,
    on_rank,
)
from agentgym.trainers.placement.lending import GatherOnDemand
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
        self._gathered: GatheredWeights | None = None
        self.engine: Engine | None = None
        """The inference engine of a rank that samples, once :meth:`make_engine` has made it; None on others."""

    def make_engine(self) -> None:
        """Create the engine of a rank that samples."""
        self.engine = self._made_engine()

    async def connect(self, say: Callable[[str], None]) -> None:
        """Wait until an engine outside this process is ready. A second call does nothing."""
        ranks = self._ranks
        if not ranks.is_main:
            if isinstance(self.engine, VllmEngine):
                await self.engine.connect(on_rank(ranks.rank))
            return
        if self.engine is None or self.served is None:
            return
        for note in engine_notes(self.engine, self._config, self.model, self._tokenizer):
            say(note)
        await connect_engine(
            self.engine,
            self._config,
            self.served,
            self._tokenizer,
            self._run_dir,
            say,
            ranks.count,
            self._cluster.start_engines if self._cluster else lambda source: False,
        )

    async def update(self, version: int) -> None:
        """Send the model's current weights to the engine. All ranks must call this."""
        ranks = self._ranks
        if self._config.engine.sleep:  # servers that wake take the memory of the gradients, whose step is over
            self.model.zero_grad()
        if self._gather_on_demand is not None:
            self._gather_on_demand.begin()
        elif self.served is not self.model and not self._roles.gather:
            copy_whole(self.model, self.served)
        if self._roles.share_servers:
            await self._update_servers(version)
        elif self._roles.all_play:
            await ranks.from_all(lambda: self._update_own(version))
        else:
            if self._roles.gather:
                self._gather(version, self._known_dtypes())
            await ranks.from_main(lambda: self._update_own(version))

    def whole_model(self) -> CausalLM | None:
        """Return the unsharded model on the first rank, None on the others. All ranks must call this."""
        if not isinstance(self.model, FSDPModule):
            return self.model
        if self._gather_on_demand is not None:
            self._gather_on_demand.give_all(is_kept=self._ranks.is_main)
        else:
            move_whole(self.model, self.served if self._ranks.is_main else None)
        return self.served if self._ranks.is_main else None

    async def sleep_engine(self) -> None:
        """Let inference servers on this GPU free their memory for training, if ``engine.sleep`` is set."""
        if self._config.engine.sleep and isinstance(self.engine, VllmEngine):
            await self.engine.rest()

    # ---------------------------------------------------------------------------------------------------- private

    @property
    def _own_engine(self) -> Engine:
        assert self.engine is not None, "this rank does not play"
        return self.engine

    async def _update_own(self, version: int) -> None:
        with boundary(EngineError, f"engine.kind={self._config.engine.kind}: update_weights"):
            await self._own_engine.update_weights(version)

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
            return build_guest(config, self.model.config, ranks.rank)
        if self._cluster is not None and config.cluster.plays:
            return engine_on(
                self._cluster, ranks, config, self.served, self._tokenizer, self._role, all_ranks_sample=roles.all_play
            )
        is_sender = roles.gather and (ranks.is_main or roles.all_send)
        source = self.model if is_sender else self.served
        if source is None:
            return None
        engine = build_engine(config, source, self._run_dir, num_episodes)
        if roles.share_servers and isinstance(engine, VllmEngine):
            engine.share(ranks.rank, ranks.count if roles.all_send else 1)
        return engine

    def _gather(self, version: int, dtypes: Collection[str]) -> None:
        """Gather the weights that ranks write or send for servers. All ranks must call this.

        It comes after :meth:`connect`, to which a new model's weights are still in the first rank's memory.
        """
        if self._gathered is None:
            is_sender = self._ranks.is_main or self._roles.all_send
            weight_sync = self._config.engine.weight_sync
            self._gathered = GatheredWeights(self.model, self.served, weight_sync, is_sender=is_sender)
            if isinstance(self.engine, VllmEngine):
                self.engine.borrow(self._gathered)
        if isinstance(self.engine, VllmEngine):
            self.engine.forget()
        self._gathered.gather(probe_ids(version, facts_of(self.model.config).vocab_size), dtypes or DTYPES)

    def _known_dtypes(self) -> frozenset[str]:
        """Return the dtypes of all servers' computation, as far as they have told a rank. All ranks must call this."""
        own = self.engine.dtypes if isinstance(self.engine, VllmEngine) else frozenset()
        return frozenset().union(*self._ranks.gathered(own))

    async def _update_servers(self, version: int) -> None:
        """Give the servers from which all ranks sample their weights. All ranks must call this."""
        engine, ranks = self._own_engine, self._ranks
        assert isinstance(engine, ServersEngine)

        async def publish() -> Published:
            assert isinstance(engine, VllmEngine)
            return engine.publish(version, dtypes)

        known = await ranks.from_all(engine.hold)
        dtypes: frozenset[str] = frozenset().union(*(one.dtypes for one in known))
        if self._roles.gather:
            self._gather(version, dtypes)
        published = await ranks.from_main(publish)
        is_patient = not any(one.num_ready for one in known)
        given = await ranks.from_all(lambda: engine.give(published, is_patient=is_patient))
        if not any(given) and not is_patient:  # those that were ready are lost: wait until one is back
            given = await ranks.from_all(lambda: engine.give(published, is_patient=True))
        engine.adopt(Handover(published=published, servers={url: one for part in given for url, one in part.items()}))
