"""Settings of a Ray cluster, and the place of a run's actors on it. This module does not import Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentgym.errors import ConfigError
from agentgym.settings import Count, Natural, NonNegative, Positive, Settings, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(Settings):
    """Settings of env workers, engines and the trainer's ranks as Ray actors, which are restarted if they die.

    Example:
        >>> ClusterConfig(address="auto", num_env_workers=8, num_engines=4, gpus_per_engine=1).placement
        'spread'
    """

    address: str = ""
    """Address of the cluster. Empty: no Ray, everything runs in this process. ``auto``: the cluster on this machine
    (``ray start``) or at ``RAY_ADDRESS``. ``HOST:PORT`` or ``ray://HOST:PORT``: that cluster. ``local``: a cluster that
    starts and ends with this run."""
    num_trainer_ranks: Natural = 0
    """Number of the trainer's ranks, each an actor; 0: the trainer runs in the process that was started. The run's
    folder must have the same path on all machines."""
    cpus_per_rank: Positive = 1.0
    """CPUs that Ray reserves for each rank."""
    gpus_per_rank: Literal[0, 1] = 0
    """1: each rank trains on its own GPU; 0: on CPUs."""
    rank_placement: Literal["pack", "strict_pack", "spread"] = "pack"
    """Placement of ranks: on as few machines as possible, on exactly one, or on as many as possible."""
    max_restarts: Natural = 3
    """Number of times that the ranks restart from the last checkpoint after one of them died."""
    num_env_workers: Natural = 2
    """Number of processes that play episodes. Each has its share of ``group.num_envs`` environments, renders prompts
    and sends requests to engines. 0: the trainer's ranks play, as without Ray; with ``engine.kind=vllm`` Ray then
    starts the servers, which take weights in the ways of ``engine.weight_sync``."""
    num_env_servers: Natural = 0
    """Number of environment servers (``agentgym serve``) that run the environments of all env workers; 0: each worker
    runs its own. Each server takes the resources of an env worker."""
    num_engines: Count = 1
    """Number of engines of kind ``engine.kind``. Ray's object store transfers the weights to them."""
    cpus_per_env_worker: NonNegative = 1.0
    """CPUs that Ray reserves per env worker. A reservation decides the placement of an actor and does not limit its
    use; this also holds for the next four keys."""
    cpus_per_engine: NonNegative = 1.0
    gpus_per_engine: NonNegative = 0.0
    """GPUs per engine; an engine sees no others. Hide the GPUs of a trainer that is not an actor from Ray, with
    ``CUDA_VISIBLE_DEVICES`` at ``ray start``."""
    env_worker_resources: Mapping[str, float] = field(default_factory=dict)
    """Further resources per env worker, by their names in the cluster (``ray start --resources``)."""
    engine_resources: Mapping[str, float] = field(default_factory=dict)
    vllm_flags: tuple[str, ...] = ()
    """Further flags for vLLM, if ``engine.kind`` is ``vllm``."""
    placement: Literal["spread", "pack"] = "spread"
    """Placement of the actors of a kind: on as many machines as possible, or on as few."""
    start_timeout_s: Positive = 120.0
    """Seconds within which the first worker and the first engine must be ready."""
    wait_s: Positive = 120.0
    """Seconds that an episode waits for a worker or an engine while all are restarting."""
    health_interval_s: Positive = 1.0
    health_timeout_s: Positive = 60.0
    """Seconds without an answer after which an actor is killed and restarted."""
    object_store_mb: Natural = 0
    """Shared memory of a ``local`` cluster's object store in MB; 0: Ray's default."""

    @property
    def plays(self) -> bool:
        """True if episodes are played by actors.

        Example:
            >>> ClusterConfig(address="auto").plays, ClusterConfig(address="auto", num_env_workers=0).plays
            (True, False)
        """
        return bool(self.address) and self.num_env_workers > 0

    def __post_init__(self) -> None:
        check_ranges(self, "cluster.")
        if self.num_trainer_ranks and not self.address:
            raise ConfigError(
                "cluster.num_trainer_ranks starts ranks on a Ray cluster: set cluster.address, as in auto"
            )


SERVERS_NAME = "AGENTGYM_SERVERS_NAME"
"""Environment variable of a rank that Ray started: the name of the places of the run's vLLM servers."""
AUTH_MODE = "RAY_AUTH_MODE"
"""Environment variable that Ray reads when it is imported: ``token`` for clusters that ask for one, as new ones do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlace:
    """The place of a run's actors, for ranks that join them."""

    address: str
    """Address of the cluster's head."""
    auth_mode: str
    """The first rank's value of :data:`AUTH_MODE`; empty if it has none."""
    names: str
    """Namespace of the actors' names, so that they do not collide with those of other runs or earlier starts."""
    env_url: str
    """Addresses of the environment servers, separated by commas; empty if there are none."""
    env_token: str = field(default="", repr=False)
    """Token of these servers."""
    engine_urls: Mapping[str, tuple[str, ...]]
    """Addresses of the vLLM servers from which ranks sample, by role; empty if Ray started none for them."""
    engine_token: str = field(default="", repr=False)
    """Token of these servers."""
