"""Settings of a Ray cluster. Nothing here imports Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentgym.errors import ConfigError
from agentgym.settings import Count, Natural, NonNegative, Positive, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Env workers, engines and the trainer's ranks as Ray actors, each started again where it dies.

    Example:
        >>> ClusterConfig(address="auto", num_env_workers=8, num_engines=4, gpus_per_engine=1).placement
        'spread'
    """

    address: str = ""
    """Empty: no Ray, everything in this process. ``auto``: the cluster that runs on this machine (``ray start``), or of
    ``RAY_ADDRESS``; ``HOST:PORT`` or ``ray://HOST:PORT``: that one; ``local``: one of this run's own, which ends with
    it."""
    num_trainer_ranks: Natural = 0
    """Ranks of the trainer, each an actor; 0: the trainer stays in the process that was started. The run's folder must
    be at the same path on all machines."""
    cpus_per_rank: Positive = 1.0
    """What Ray reserves for each."""
    gpus_per_rank: Literal[0, 1] = 0
    """1: each rank trains on a GPU of its own; 0: on processors."""
    rank_placement: Literal["pack", "strict_pack", "spread"] = "pack"
    """Ranks on as few machines as possible, on a single one or nowhere, or over as many as there are."""
    max_restarts: Natural = 3
    """Times that the ranks start again from the last checkpoint after one of them died."""
    num_env_workers: Count = 2
    """Processes that play: each holds its share of ``group.num_envs`` environments, renders, and asks engines."""
    num_env_servers: Natural = 0
    """Environment servers (``agentgym serve``) that hold the environments of all env workers, spread over them; 0: each
    worker has its own. They take the resources of an env worker each."""
    num_engines: Count = 1
    """Engines of kind ``engine.kind``. Weights reach them through Ray's object store."""
    cpus_per_env_worker: NonNegative = 1.0
    """What Ray reserves, which limits where an actor is placed and not what it uses; likewise the next four."""
    cpus_per_engine: NonNegative = 1.0
    gpus_per_engine: NonNegative = 0.0
    """An engine sees these GPUs and no others. Hide from Ray (``CUDA_VISIBLE_DEVICES`` at ``ray start``) those of a
    trainer that is no actor."""
    env_worker_resources: Mapping[str, float] = field(default_factory=dict)
    """Further resources by the names they have in the cluster (``ray start --resources``)."""
    engine_resources: Mapping[str, float] = field(default_factory=dict)
    vllm_flags: tuple[str, ...] = ()
    """Further flags of vLLM's, where ``engine.kind`` is ``vllm``."""
    placement: Literal["spread", "pack"] = "spread"
    """Actors of a kind over as many machines as there are, or on as few."""
    start_timeout_s: Positive = 120.0
    """How long the first worker and the first engine may take."""
    wait_s: Positive = 120.0
    """How long an episode waits for a worker or an engine while all are being started again."""
    health_interval_s: Positive = 1.0
    health_timeout_s: Positive = 60.0
    """An actor that does not answer for so long is killed, and so started again."""
    object_store_mb: Natural = 0
    """Shared memory of a ``local`` cluster for what goes between processes; 0 leaves it to Ray."""

    def __post_init__(self) -> None:
        check_ranges(self, "cluster.")
        if self.num_trainer_ranks and not self.address:
            raise ConfigError(
                "cluster.num_trainer_ranks starts ranks on a Ray cluster: set cluster.address, as in auto"
            )
