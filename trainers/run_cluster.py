"""The Ray cluster of a run. This module imports Ray only if there is one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentgym.errors import require_extra
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.ray.config import AUTH_MODE, ClusterPlace

if TYPE_CHECKING:
    from agentgym.trainers.ray.cluster import Cluster, JoinedCluster


def cluster_of(config: TrainConfig, ranks: Ranks, *, do_all_play: bool) -> Cluster | JoinedCluster | None:
    """Connect to the run's Ray cluster, and return it; None if it has none, or on a rank that does not play.

    The first rank starts the actors, which other ranks join. All ranks must call this.

    Args:
        do_all_play: True if all ranks play, False if only the first one does.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: no cluster has that address, it is too small, or this rank's machine cannot reach it.
    """
    if not config.cluster.address or not (ranks.is_main or do_all_play):
        return None
    require_extra(f"cluster.address={config.cluster.address}", "ray", "ray")
    if config.cluster.num_env_servers:
        require_extra(f"cluster.num_env_servers={config.cluster.num_env_servers}", "serve", "fastapi", "websockets")
    return _started(config, ranks, do_all_play) if ranks.is_main else _joined(config, ranks)


def _started(config: TrainConfig, ranks: Ranks, do_all_play: bool) -> Cluster:
    from agentgym.trainers.ray.cluster import Cluster

    cluster = Cluster(config)
    if do_all_play:
        ranks.of_first(cluster.place)
    return cluster


def _joined(config: TrainConfig, ranks: Ranks) -> JoinedCluster:
    place: ClusterPlace | None = ranks.of_first(None)
    assert place is not None, "the first rank sends it"
    if config.cluster.address == "local" and place.auth_mode:
        os.environ.setdefault(AUTH_MODE, place.auth_mode)
    from agentgym.trainers.ray.cluster import JoinedCluster

    return JoinedCluster(config, place, ranks.rank)
