"""A connection to a Ray cluster, and the actors a run places on it."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict
from urllib.parse import urlsplit

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from agentgym.env.env import Env
from agentgym.errors import ConfigError
from agentgym.remote.env import TOKEN_VARIABLE
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.ray.config import ClusterConfig
from agentgym.trainers.ray.engines import RayEngine
from agentgym.trainers.ray.env_server import EnvServerActor, ports, token
from agentgym.trainers.ray.env_worker import EnvWorker
from agentgym.trainers.ray.env_workers import RayPool, share_of
from agentgym.trainers.ray.fleet import Fleet, FleetStats, first_line
from agentgym.trainers.ray.serving import EngineSpec
from agentgym.trainers.ray.vllm_actor import EngineActor, VllmActor
from agentgym.trainers.types import CausalLM, Tokenizer

_REACH_TIMEOUT_S = 5.0


class Cluster:
    """A run's actors on a cluster. They end with :meth:`close`, at the latest with this process.

    Raises:
        ConfigError: the cluster cannot be reached, or has not what one actor of each kind needs.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config.cluster
        self._run_config = config
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            _connect(config.cluster)
        try:
            _check_resources(config.cluster)
            worker = ray.remote(**_options(config.cluster, "env_worker"))(EnvWorker)
            num_workers = config.cluster.num_env_workers
            share = share_of(config.group.num_envs, num_workers)
            handles = [worker.remote(share, os.getcwd()) for _ in range(num_workers)]
            servers = self._start_servers()
            self.env_url = self._urls_of(servers)
            """Addresses of the environment servers, with commas; empty if there are none."""
        except BaseException:
            self.close()
            raise
        self._workers = Fleet("env worker", handles, config.cluster)
        self._servers = Fleet("env server", servers, config.cluster)

    @property
    def stats(self) -> dict[str, FleetStats]:
        """Counters of the env workers and servers by what they are called in metrics; the same objects every time."""
        found = {"env_workers": self._workers.stats}
        return {**found, "env_servers": self._servers.stats} if self._servers.members else found

    def pool(self, make_env: Callable[[], Env]) -> RayPool:
        """A pool over the env workers; all pools share them."""
        return RayPool(self._workers, make_env)

    def engine(self, model: CausalLM, tokenizer: Tokenizer) -> RayEngine:
        """Engines that sample from copies of ``model``."""
        config = self._run_config
        is_vllm = config.engine.kind == "vllm"
        engine = ray.remote(**_options(self._config, "engine"))(VllmActor if is_vllm else EngineActor)
        spec = EngineSpec.of(config, model, tokenizer if is_vllm else None, os.getcwd())
        return RayEngine(
            [engine.remote(spec) for _ in range(self._config.num_engines)],
            model,
            self._config,
            max_context_tokens=config.model.max_context_tokens,
            # the first weights are what a server starts from
            update_timeout_s=config.engine.update_timeout_s + (config.engine.start_timeout_s if is_vllm else 0),
            for_vllm=is_vllm,
        )

    async def connect(self, say: Callable[[str], None]) -> None:
        """Wait for the first env worker.

        Raises:
            ConfigError: none came up in time.
        """
        self._workers.say = self._servers.say = say
        self._servers.start()
        await self._workers.wait_for_one()

    async def close_workers(self) -> None:
        """End the env workers and servers."""
        await self._workers.close()
        await self._servers.close()

    def close(self) -> None:
        """Let go of the cluster, and end it if it is this run's own; a second call does nothing."""
        if self._is_ours:
            ray.shutdown()

    # ---------------------------------------------------------------------------------------------------- private

    def _start_servers(self) -> list[ActorHandle]:
        count, envs = self._config.num_env_servers, [own.env.id for own in self._run_config.by_env.values()]
        server = ray.remote(**_options(self._config, "env_server"))(EnvServerActor)
        return [server.remote(envs, port, os.getcwd()) for port in ports(count)]

    def _urls_of(self, servers: Sequence[ActorHandle]) -> str:
        """Wait for the servers, whose addresses environments need to be made.

        Raises:
            ConfigError: one does not start.
        """
        try:
            return ",".join(ray.get([server.url.remote() for server in servers], timeout=self._config.start_timeout_s))
        except RayError as error:
            raise ConfigError(f"cluster.num_env_servers: no server was started: {first_line(error)}") from None


def _connect(config: ClusterConfig) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    arguments: dict[str, object] = {"address": config.address, "log_to_driver": False, "logging_level": "ERROR"}
    if config.address == "local":
        arguments |= _own_cluster(config)
    else:
        _check_reachable(config.address)
    try:
        ray.init(**arguments)
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"cluster.address={config.address}: no Ray cluster could be joined ({type(error).__name__}: {first}); "
            "ray start --head starts one, cluster.address=local makes one of the run's own"
        ) from None


def _own_cluster(config: ClusterConfig) -> dict[str, object]:
    """Return Ray's arguments for a cluster of the run's own on this machine."""
    # as many processors as are asked for: the actors share those that are there anyway
    needs = {name: math.ceil(amount) for name, amount in _needs(config).items()}
    arguments: dict[str, object] = {
        "include_dashboard": False,
        "num_cpus": max(1, needs.pop("CPU")),
        # its actors are the run: not to come after everything else, nor after processes that nobody asked for
        "_system_config": {"worker_niceness": 0, "prestart_worker_first_driver": False},
    }
    del needs["GPU"]  # those that are there
    if config.object_store_mb:
        arguments["object_store_memory"] = config.object_store_mb * 2**20
    return {**arguments, "resources": needs}


def _check_reachable(address: str) -> None:
    """Ask the port first: Ray itself would try for a minute."""
    if address == "auto":
        return
    parts = urlsplit(address if "://" in address else f"ray-head://{address}")
    try:
        if not parts.hostname or not parts.port:
            raise OSError("expected auto, local, HOST:PORT or ray://HOST:PORT")
        socket.create_connection((parts.hostname, parts.port), _REACH_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cluster.address={address} cannot be reached: {error}") from None


class ActorOptions(TypedDict):
    """Options of an actor, by Ray's names."""

    num_cpus: float
    num_gpus: float
    resources: dict[str, float]
    scheduling_strategy: str
    max_restarts: int
    max_task_retries: int
    max_concurrency: int
    runtime_env: dict[str, dict[str, str]] | None


def _options(config: ClusterConfig, kind: str) -> ActorOptions:
    """Ray's options of an actor."""
    is_engine = kind == "engine"
    resources: Mapping[str, float] = config.engine_resources if is_engine else config.env_worker_resources
    return {
        "num_cpus": config.cpus_per_engine if is_engine else config.cpus_per_env_worker,
        "num_gpus": config.gpus_per_engine if is_engine else 0,
        "resources": dict(resources),
        "scheduling_strategy": "SPREAD" if config.placement == "spread" else "DEFAULT",
        "max_restarts": -1,
        "max_task_retries": 0,  # an episode that was lost is played again by those who know its seeds
        "max_concurrency": 10_000,
        # the control token of environment servers; workers are their clients
        "runtime_env": {"env_vars": {TOKEN_VARIABLE: token()}} if config.num_env_servers and not is_engine else None,
    }


def _needs(config: ClusterConfig) -> dict[str, float]:
    """Return the resources that all actors together reserve, by Ray's names."""
    needs: dict[str, float] = {}
    for kind, count in _counts(config).items():
        options = _options(config, kind)
        for name, amount in {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}.items():
            needs[name] = needs.get(name, 0.0) + count * amount
    return needs


def _counts(config: ClusterConfig) -> dict[str, int]:
    """Return how many actors of each kind there are."""
    workers = {"env_worker": config.num_env_workers, "engine": config.num_engines}
    return {**workers, "env_server": config.num_env_servers}


def _check_resources(config: ClusterConfig) -> None:
    """Refuse what would wait for ever.

    Raises:
        ConfigError: naming what all actors together need and what the cluster has.
    """
    has = ray.cluster_resources()
    short = [
        f"{n} {has.get(n, 0.0):g} of {amount:g}" for n, amount in _needs(config).items() if amount > has.get(n, 0.0)
    ]
    if short:
        raise ConfigError(
            f"the Ray cluster has too little for {config.num_env_workers} env workers, {config.num_env_servers} env "
            f"servers and {config.num_engines} engines: {', '.join(short)}; lower "
            "cluster.num_env_workers, cluster.num_engines or what each needs"
        )
