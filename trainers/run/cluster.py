"""The Ray cluster of a run. This module imports Ray only if there is one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentgym.engine import Engine
from agentgym.errors import require_extra
from agentgym.trainers.config.cluster import AUTH_MODE, ClusterPlace
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.types import CausalLM, Tokenizer

if TYPE_CHECKING:
    from agentgym.trainers.ray.cluster import Cluster, JoinedCluster


def cluster_of(
    config: TrainConfig, ranks: Ranks, *, all_ranks_sample: bool
) -> tuple[Cluster | JoinedCluster | None, ClusterPlace | None]:
    """Connect to the run's Ray cluster, whose actors the first rank starts. All ranks must call this.

    Args:
        all_ranks_sample: True if all ranks play, False if only the first one does.

    Returns:
        The connection, on the first rank and on others that play by the actors; and the actors' place on ranks that
        play. Both are None in a run without a cluster.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: no cluster has that address, it is too small, or this rank's machine cannot reach it.
    """
    if not config.cluster.address or not (ranks.is_main or all_ranks_sample):
        return None, None
    require_extra(f"cluster.address={config.cluster.address}", "ray", "ray")
    if config.cluster.num_env_servers:
        require_extra(f"cluster.num_env_servers={config.cluster.num_env_servers}", "serve", "fastapi", "websockets")
    if ranks.is_main:
        from agentgym.trainers.ray.cluster import Cluster

        cluster = Cluster(config)
        return cluster, ranks.of_first(cluster.place) if all_ranks_sample else cluster.place
    place: ClusterPlace | None = ranks.of_first(None)
    assert place is not None, "the first rank sends it"
    return _joined(config, place, ranks.rank) if config.cluster.plays else None, place


def engine_on(
    cluster: Cluster | JoinedCluster,
    ranks: Ranks,
    config: TrainConfig,
    model: CausalLM | None,
    tokenizer: Tokenizer | None,
    role: str = "",
    *,
    all_ranks_sample: bool,
) -> Engine:
    """Return an engine of a model on a Ray cluster. The first rank starts its actors before others look for them.

    Args:
        config: the configuration by which the model is sampled from.
        model: the model, on the first rank.
        role: the role that it plays; empty for the run's policy.
    """
    if not ranks.is_main:
        ranks.meet()
        return cluster.engine(config, None, None, role)
    engine = cluster.engine(config, model, tokenizer, role)
    if all_ranks_sample:
        ranks.meet()
    return engine


def _joined(config: TrainConfig, place: ClusterPlace, rank: int) -> JoinedCluster:
    if config.cluster.address == "local" and place.auth_mode:
        os.environ.setdefault(AUTH_MODE, place.auth_mode)
    from agentgym.trainers.ray.cluster import JoinedCluster

    return JoinedCluster(config, place, rank)
